"""DeepSpeed: batch arithmetic, settings, and ops that do not build."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

EXTENSIONS_ROOT = says(r"using \S+ as pytorch extensions root", at=HINT)
BUILT = says(
    r"time to load \w+ op",
    r"loading extension module",
    r"building extension module",
    r"emitting ninja",
    r"adam optimizer #",
    at=HINT,
)


def _build_never_ends(facts: Facts) -> tuple[list[Fact], float]:
    """Every rank that speaks of the extensions folder speaks of nothing after it."""
    roots = facts.of(EXTENSIONS_ROOT)
    last = [line for line in facts.last_lines.values() if EXTENSIONS_ROOT.match(line) or "no further" in line]
    return (roots, 0.85) if roots and last and not facts.has(BUILT) else NOTHING


RULES = (
    Rule(
        name="batch_does_not_divide",
        kind=Kind.BATCH_CONFIG,
        owner="ml",
        cause="the batch sizes do not multiply to the global batch at this world size, or do not divide it",
        do="take a legal value for the world size that the launcher made; `warpbeam plan` prints the nearest",
        signals=(
            says(r"batch size:? \d+ is not equal", at=LIKELY),
            says(
                r"train_batch_size is not equal to",
                r"check batch related parameters",
                r"micro.?batch size per gpu: .{0,40}greater than",
                at=SURE,
            ),
            says(
                r"(batch|num_generations|generations per prompt|micro_?batch|minibatch|accumulation)\b"
                r".{0,120}(divisible|divides?|multiple of|not equal to)",
                at=SURE,
                unless=r"\bheads?\b|hidden|vocab",
            ),
            says(
                r"(divisible|multiple of|divide\w*).{0,80}(batch|world[_ ]size|data.parallel|num_generations"
                r"|micro|dp[_ ]size)",
                at=LIKELY,
                unless=r"\bheads?\b|hidden|vocab",
            ),
            told(
                r"(micro_batch|train_batch|batch_size|gradient_accumulation)\w*.{0,80}(0\b|zero|negative|must be"
                r"|has to be|mismatch|less than|smaller than|not match)",
                at=LIKELY,
                unless=r"out of memory|timeout",
            ),
        ),
    ),
    Rule(
        name="deepspeed_setting",
        kind=Kind.DEEPSPEED_CONFIG,
        owner="ml",
        cause="a DeepSpeed setting is wrong, or does not go with the framework or the model code",
        do=(
            "follow the message; leave shared values on `auto`, and let no code touch parameters that ZeRO-3 "
            "holds apart"
        ),
        signals=(
            says(r"configured in the deepspeed config|deepspeed config, but", at=LIKELY),
            says(r"optimizer got an empty parameter list", at=POSSIBLE),
            says(r"tensor [ab] \(0\) must match|at non-singleton dimension.{0,40}\(0\)", at=LIKELY),
            says(r"max\(\) arg is an empty sequence|fp16_partitioned_groups|initialize_optimizer_states", at=LIKELY),
            says(
                r"deepspeedconfigerror",
                r"deepspeed config.{0,80}(mismatch|invalid|error|wrong|correct)",
                r"ds config values",
                r"mismatch trainingarguments",
                at=SURE,
            ),
            says(
                r"torch\.size\(\[0\]\)",
                r"size ?\[0\]",
                r"'weight' must be 2-?d",
                r"weight should have at least (2|two) dimensions",
                at=SURE,
            ),
            told(
                r"(zero[- _]?(stage[- _]?)?[123]|zero[- _]?offload|zero[- _]?infinity|deepspeed|ds_config"
                r"|zero_optimization|stage3_\w+|offload_(param|optimizer))\b.{0,160}(not (supported|compatible"
                r"|allowed|work|implemented)|incompatible|does(n't| not) support|unsupported|requires?"
                r"|cannot be used|conflict|invalid|must (be|not)|untested|only support|unexpected|deprecated"
                r"|wrong)",
                at=LIKELY,
                unless=r"world size is not currently|cuda|nvcc|ninja|op builder|requires? libaio",
            ),
            told(
                r"(not (supported|compatible)|incompatible|cannot be used|unsupported|conflict\w*)"
                r".{0,80}(zero[- _]?[123]|zero stage|deepspeed|zero-offload)",
                at=LIKELY,
                unless=r"world size|cuda|op builder",
            ),
            says(
                r"zero_allow_untested_optimizer",
                r"zero_force_ds_cpu_optimizer",
                r"client provided optimizer",
                r"fp16_partitioned_groups|initialize_optimizer_states.{0,80}error",
                r"both fp16 and bf16",
                r"(fp16|bf16).{0,30}(cannot|can not|both).{0,30}(simultaneous|enabled|same time|together)",
                r"has already been reduced",
                r"gradient computed twice for this partition",
                at=SURE,
            ),
            says(
                r"'?status'?: ?'?(inflight|not_available)",
                r"(in|param\w*).{0,30}status.{0,40}(inflight|not_available)",
                r"ds_(id|tensor|status|shape|numel)\b.{0,60}(attribute|missing|error)",
                r"'\w+' object has no attribute 'ds_\w+",
                at=LIKELY,
                unless=r"ds_opt_adam",
            ),
            told(
                r"(set_z3_leaf_modules|z3_leaf|gatheredparameters|zero\.init|reduce_bucket_size"
                r"|stage3_gather_16bit|contiguous_gradients|overlap_comm|load_from_fp32_weights|low_cpu_mem_usage"
                r"|device_map)",
                at=POSSIBLE,
                unless=r"info",
            ),
            says(
                r"'[<>]=?' not supported between instances of '(str|int|nonetype|float)' and",
                r"(could not convert|invalid literal).{0,40}'?auto'?",
                at=POSSIBLE,
            ),
        ),
    ),
    Rule(
        name="op_cuda_mismatch",
        kind=Kind.DEEPSPEED_BUILD,
        owner="platform",
        cause="the CUDA toolkit of the image is not the one that torch was built for, so ops do not compile",
        do="align toolkit and torch in the image, or build the ops into it",
        signals=(
            says(
                r"cudamismatchexception",
                r"installed cuda version .{0,60}does not match",
                r"detected cuda version .{0,60}mismatches",
                at=SURE,
            ),
            says(
                r"compiled with (cuda )?\d+\.\d+.{0,80}(mismatch|match)",
                r"mismatch.{0,60}used to compile pytorch",
                at=SURE,
                unless=r"nccl",
            ),
        ),
    ),
    Rule(
        name="op_does_not_build",
        kind=Kind.DEEPSPEED_BUILD,
        owner="platform",
        cause="a DeepSpeed or torch extension does not build or load in this image",
        do="compiler, ninja and toolkit into the image, or the ops pre-built there; then `ds_report`",
        signals=(
            says(r"lib(cud\w+|nvrtc|cublas\w*|curand)\.so\S*: cannot open shared object", at=POSSIBLE),
            says(
                r"error building extension",
                r"ninja is required",
                r"ninja: build stopped",
                r"unable to find ninja",
                r"unable to jit load",
                r"missingcudaexception",
                r"cuda_home (does not exist|environment variable is not set|is not set)",
                at=SURE,
            ),
            says(
                r"\b(nvcc|g\+\+|gcc|c\+\+|cc1plus|ld|clang|ninja)\b.{0,80}(not found|no such file|error:"
                r"|cannot find|failed|fatal error|unsupported|returned non-zero|missing)",
                at=LIKELY,
                unless=r"segfault|\.sock",
            ),
            says(
                r"\b(cpu_adam|fused_adam|fused_lamb|async_io|transformer_inference|sparse_attn|cpu_adagrad"
                r"|cpu_lion|quantizer|random_ltd|inference_core_ops|evoformer_attn)\w*(\.so|_op| op)?\b"
                r".{0,100}(cannot open|undefined symbol|not (compatible|found|installed)|fail|no such file|error"
                r"|unable|can'?t|unsupported)",
                at=LIKELY,
            ),
            says(
                r"undefined symbol: _?z",
                r"cannot find -l(curand|cuda|cudart|aio|cublas)",
                r"libaio",
                r"python\.h: no such file",
                r"unsupported gnu version",
                r"unsupported gpu architecture",
                at=LIKELY,
            ),
            says(
                r"torch_extensions\S*.{0,100}(no such file|permission denied|cannot open|stale|lock|partial|corrupt)",
                at=LIKELY,
            ),
        ),
    ),
    Rule(
        name="op_build_lock",
        kind=Kind.DEEPSPEED_BUILD,
        owner="ml",
        cause=(
            "every rank waits for an extension that no process builds: a stale lock in the shared "
            "torch_extensions folder"
        ),
        do="remove the torch_extensions folder; a node-local TORCH_EXTENSIONS_DIR, or ops pre-built in the image",
        signals=(EXTENSIONS_ROOT, BUILT),
        judge=_build_never_ends,
    ),
)

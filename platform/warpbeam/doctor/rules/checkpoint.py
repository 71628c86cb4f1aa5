"""Checkpoints and weights: files that are not what they should be, layouts that do not fit."""

from __future__ import annotations

from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

SIZE_MISMATCH = says(
    r"size mismatch for .{0,200}copying a param", at=POSSIBLE, unless=r"torch\.size\(\[0\]\)|embed|lm_head"
)
LAYOUT = says(
    r"(tensor|pipeline|model|expert)[-_ ](model[-_ ])?parallel(-size|_size| size)\S* ?=?\d",
    r"(saved|written|trained) (with|on|by|at) \d+",
    r"\b(tp|pp|mp)[-_ ]?(size)? ?=? ?\d",
    at=HINT,
)

RULES = (
    Rule(
        name="shapes_of_another_layout",
        kind=Kind.CHECKPOINT_TOPOLOGY,
        owner="ml",
        cause="the checkpoint's pieces have the shapes of another parallel layout",
        do="resume with the layout that wrote it, or convert it first",
        signals=(SIZE_MISMATCH,),
        needs=(LAYOUT,),
    ),
    Rule(
        name="weights_file_damaged",
        kind=Kind.CHECKPOINT_FILE,
        owner="ml",
        cause="a weights or checkpoint file is damaged, cut short, or a git-lfs placeholder",
        do="fetch the file again (with git-lfs) and compare its checksum; or load the checkpoint before it",
        scope="rank",
        signals=(
            says(r"consistency check failed: file should be of size", at=SURE),
            says(r"read zip archive|(archive|file) is corrupt", at=LIKELY),
            says(
                r"headertoolarge",
                r"headertoosmall",
                r"invalidheader\w*",
                r"metadataincompletebuffer",
                r"error while deserializing header",
                r"safetensorerror",
                at=SURE,
                unless=r"no space|error 28|writing",
            ),
            says(
                r"invalid load key",
                r"unpicklingerror",
                r"git-lfs\.github\.com",
                r"pickle data was truncated",
                r"eoferror: ran out of input",
                at=SURE,
                unless=r"weights_only|weights only|unsupported (global|class|operand)",
            ),
            says(
                r"pytorchstreamreader failed",
                r"failed finding central directory",
                r"not a zip file",
                r"badzipfile",
                r"file in archive is not in a subdirectory",
                r"invalid magic number",
                at=SURE,
            ),
            says(r"unable to load weights from|\.(bin|pt|safetensors)\b.{0,20}\b\d{1,3} bytes", at=LIKELY),
            told(
                r"(checkpoint|weights?|shard|safetensors|\.bin|\.pt)\S* .{0,60}(corrupt|truncat|incomplete"
                r"|damaged|cut short|zero bytes|0 bytes|empty file|lfs pointer|checksum)",
                r"(corrupt\w*|truncated|incomplete|partial) .{0,30}(checkpoint|weights|shard|file)",
                r"lfs (pointer|not installed|install)",
                r"unexpected end of (file|data)",
                at=LIKELY,
                unless=r"p2p|gradient|log file",
            ),
        ),
    ),
    Rule(
        name="checkpoint_of_another_layout",
        kind=Kind.CHECKPOINT_TOPOLOGY,
        owner="ml",
        cause="the checkpoint was written by another number of ranks, or in another parallel layout",
        do="resume with the layout that wrote it, or convert it to a universal checkpoint first",
        signals=(
            told(
                r"saved (with|on|by|at)\b.{0,30}(world|gpus|ranks).{0,40}\b(got|now|current|but|loading)\b", at=LIKELY
            ),
            says(r"shards?\b.{0,30}(match|differ|equal).{0,30}(world|ranks|processes)", at=LIKELY),
            says(r"size mismatch between saved", at=LIKELY),
            says(
                r"(unable to|cannot|could not|can't) find .{0,30}(shards?|zero|optim\w*)\b",
                at=LIKELY,
                unless=r"node type",
            ),
            told(r"checkpoint has .{0,20}(ranks|shards|gpus).{0,60}(world|ranks|gpus)", at=LIKELY),
            says(r"checkpoint.{0,30}\b(tp|pp|dp|mp)\b ?[=:]? ?\d", at=LIKELY),
            says(
                r"used a dp world size",
                r"automatic adjustment of zero",
                r"new world size is not currently supported",
                r"elastic_checkpoint",
                r"value from (the )?checkpoint .{0,20}is not equal",
                at=SURE,
            ),
            says(
                r"(checkpoint|optimizer state|state[_ ]dict|shards?|saved|resum\w+|load\w*)"
                r".{0,100}(world[_ ]?size|number of (ranks|gpus|shards|partitions|processes)|(tensor|pipeline"
                r"|model|data|expert)[- _]?(model[- _])?parallel\w*|\b(tp|pp|dp|mp|ep)\b[ _=]*(size|degree|rank"
                r"|\d)).{0,80}(differ|mismatch|not (match|equal|support)|but|changed|instead|!=|another|!=|into"
                r"|with|vs)",
                at=LIKELY,
                unless=r"train_batch_size|evenly divisible|initializ",
            ),
            told(
                r"(mismatch|different|other|another|changed?) .{0,30}(world[_ ]?size|topolog\w+|parallel\w* (size"
                r"|layout|degree)|number of (gpus|ranks)).{0,60}(checkpoint|resum|load|saved)",
                at=LIKELY,
            ),
            says(
                r"(zero_pp_rank_\d+|mp_rank_\d+|bf16_zero_pp|__\d+_\d+\.distcp|optim_states|rng_state_\d+"
                r"|global_step\d+).{0,120}(not (found|exist)|no such file|missing|does not exist)",
                r"(no such file|not found|missing|does not exist|expected .{0,40}files).{0,120}(zero_pp_rank_\d+"
                r"|mp_rank_\d+|optim_states|rng_state_\d+|\.distcp)",
                at=LIKELY,
            ),
            says(
                r"(loaded state dict|param(eter)? groups?).{0,80}(different number|doesn'?t match"
                r"|contains a parameter group)",
                r"shape mismatch.{0,60}(shard|partition|flat)",
                r"flat.?param.{0,60}(size|shape).{0,40}(mismatch|match)",
                at=POSSIBLE,
            ),
            says(
                r"(no such file|not found|missing|does not exist).{0,120}rank[_-]?\d+\S*\.(pt|pth|bin|distcp)",
                r"(world[_ ]size|ranks|gpus)\b.{0,40}(match|differ|equal|!=).{0,40}(shards?|checkpoint|saved)",
                at=LIKELY,
                unless=r"token|vocab|reading|initializ",
            ),
            told(
                r"(checkpoint|resum\w+|saved)\b.{0,40}\b(from|with|on|by|at) \d+ (gpus?|ranks?|nodes?|processes)",
                at=POSSIBLE,
            ),
            told(r"universal checkpoint", r"ds_to_universal", r"reshard\w*", at=POSSIBLE),
        ),
    ),
)

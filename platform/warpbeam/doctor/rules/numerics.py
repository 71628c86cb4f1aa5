"""Numbers that leave their range: loss scale, token ids."""

from __future__ import annotations

from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

RULES = (
    Rule(
        name="loss_scale_at_minimum",
        kind=Kind.LOSS_SCALE,
        owner="ml",
        cause="fp16 overflows step after step, until the loss scale cannot be lowered any more",
        do="train in bf16 where the GPU has it; else a lower learning rate, a warm-up, and a look at the data",
        signals=(
            says(
                r"loss scale.{0,40}(already at minimum|at (its )?minimum|cannot decrease)",
                r"minimum loss scale reached",
                r"cannot decrease scale",
                at=SURE,
            ),
            says(
                r"attempted loss scale: (0|1|2|4)(\.0)?,? .{0,20}reducing to (0|1|2)(\.\d+)?\b",
                r"loss scaler? .{0,20}reducing loss scale to (0(\.0+)?|1\.0|[0-9.]+e-\d+)",
                at=LIKELY,
            ),
            told(
                r"(loss[ _]scal\w+|fp16|float16|half precision).{0,80}(overflow|underflow|\binf\b|\bnan\b|diverg"
                r"|65504|collapse|minimum)",
                r"(overflow|\bnan\b|\binf\b).{0,60}(fp16|float16|loss[ _]scal|half)",
                at=LIKELY,
            ),
            says(
                r"overflow!? .{0,20}(rank \d+ )?skipping step",
                r"gradient overflow",
                r"grad overflow",
                r"overflow detected",
                at=POSSIBLE,
            ),
        ),
    ),
    Rule(
        name="loss_not_a_number",
        kind=Kind.LOSS_SCALE,
        owner="ml",
        cause="the loss or a gradient is not a finite number",
        do="find the first such step and its sample ids; lower the learning rate, clip gradients, train in bf16",
        scope="rank",
        signals=(
            says(
                r"(loss|grad\w*|grad_norm)\W{1,4}(is |became |becomes )?\W?(nan|inf)\b",
                r"(nan|inf|non-?finite).{0,30}\b(loss|grad\w*)\b",
                at=POSSIBLE,
                unless=r"clip|check_for_nan=|isnan\(",
            ),
            says(r"\"kind\": ?\"not_finite\"", r"the (loss|gradient norm) of step \d+ is not a finite number", at=SURE),
        ),
    ),
    Rule(
        name="token_outside_embedding",
        kind=Kind.TOKENIZER_VOCAB,
        owner="ml",
        cause="a token id is outside the embedding: the tokenizer is larger than the model",
        do="resize the embedding to the tokenizer, or take the tokenizer that belongs to the weights",
        scope="rank",
        signals=(
            says(r"index \d+ is out of bounds for dimension", at=POSSIBLE),
            says(r"idx_dim < index_size|idx_dim >= 0|ind_dim_size|-sizes\[i\] <= index", at=LIKELY),
            says(
                r"srcindex < srcselectdimsize",
                r"index(select\w*)?.{0,40}srcselectdimsize",
                at=SURE,
            ),
            says(
                r"id \d+ is outside the vocabulary of \d+",
                r"index out of range in self",
                at=SURE,
            ),
            told(
                r"(token|input|vocab)\w*( ?ids?)?.{0,60}(out of (range|bounds)|outside|exceed|>=|larger than"
                r"|greater than|beyond).{0,60}(embed|vocab|\d+)",
                r"vocab\w*.{0,60}(mismatch|smaller|larger|exceed|differ)",
                r"(embedding|resize_token_embeddings).{0,60}(mismatch|too small|smaller|not resized|out of)",
                at=LIKELY,
            ),
            says(
                r"assertion .?t >= 0 && t < n_classes",
                r"vectorized_gather_kernel",
                r"indexkernel",
                r"index_?select\w*_?kernel",
                r"cur_target >= 0",
                at=POSSIBLE,
            ),
            says(
                r"device-side assert",
                at=HINT,
            ),
        ),
    ),
)

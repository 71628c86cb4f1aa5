"""A first sum of the memory one rank needs. States are exact; activations and logits are estimates to choose by.

States follow DeepSpeed's mixed precision (Rajbhandari et al. 2020, table 1): compute weights in the training precision,
fp32 master weights and Adam's two moments; but gradients are accumulated in fp32 (plan/deepspeed_config.py). A stage
divides by the world size what it shards.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from warpbeam.plan.model_shape import ModelShape

GIB: Final = 1 << 30
BYTES: Final = {"fp32": 4, "bf16": 2}
ADAM_STATE_BYTES: Final = 12  # fp32 master weight, exp_avg, exp_avg_sq
RUNTIME_GIB: Final = {"cpu": 0.7, "gpu": 1.5}  # process and libraries; CUDA context and NCCL buffers
LOGITS_BYTES: Final = 12  # logits, their fp32 log-softmax and its gradient, for each token and vocabulary entry


@dataclass(frozen=True, kw_only=True)
class MemorySum:
    """What one rank holds, in GiB.

    Attributes:
        gathered_gib: the whole layers ZeRO-3 has at hand while computing.
        host_gib: offloaded to host memory; on a CPU pool that is the same memory.
        nvme_gib: offloaded to disk.
        available_gib: the accelerator's memory, or a CPU rank's share of its node.
    """

    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    gathered_gib: float
    activations_gib: float
    logits_gib: float
    runtime_gib: float
    host_gib: float
    nvme_gib: float
    on_cpu: bool
    available_gib: float

    @property
    def total_gib(self) -> float:
        """On the accelerator; on a CPU pool with what is offloaded to the host."""
        parts = (
            self.weights_gib,
            self.gradients_gib,
            self.optimizer_gib,
            self.gathered_gib,
            self.activations_gib,
            self.logits_gib,
            self.runtime_gib,
            self.host_gib if self.on_cpu else 0.0,
        )
        return sum(parts)

    @property
    def fits(self) -> bool:
        return self.total_gib <= self.available_gib

    def to_dict(self) -> dict[str, Any]:
        """With the total and the answer, for `--json`."""
        return asdict(self) | {"total_gib": self.total_gib, "fits": self.fits}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> MemorySum:
        return cls(**{key: value[key] for key in cls.__dataclass_fields__})


def memory_sum(
    shape: ModelShape,
    *,
    strategy: str,
    offload: str,
    precision: str,
    world_size: int,
    micro_batch: int,
    seq_len: int,
    activation_checkpointing: bool,
    on_cpu: bool,
    available_gib: float,
) -> MemorySum:
    """The sum for one rank of `world_size` under `strategy` (zero1 | zero2 | zero3 | ddp)."""
    stage = 0 if strategy == "ddp" else int(strategy.removeprefix("zero"))
    size, n = BYTES[precision], shape.parameters
    if stage == 0:  # plain modules: fp32 weights and gradients (autocast computes in bf16), two moments
        weights, gradients, optimizer = 4 * n, 4 * n, 8 * n
    else:
        weights = size * n // (world_size if stage == 3 else 1)
        gradients = 4 * n // (world_size if stage >= 2 else 1)
        optimizer = ADAM_STATE_BYTES * n // world_size
    moved = (optimizer + (weights if stage == 3 else 0)) if offload != "none" else 0
    if moved:
        optimizer, weights = 0, 0 if stage == 3 else weights
    tokens = micro_batch * seq_len
    return MemorySum(
        weights_gib=weights / GIB,
        gradients_gib=gradients / GIB,
        optimizer_gib=optimizer / GIB,
        gathered_gib=(_gathered(shape) * size if stage == 3 and world_size > 1 else 0) / GIB,
        activations_gib=activation_bytes(shape, tokens, size, activation_checkpointing) / GIB,
        logits_gib=LOGITS_BYTES * tokens * shape.vocab_size / GIB,
        runtime_gib=RUNTIME_GIB["cpu" if on_cpu else "gpu"],
        host_gib=moved / GIB if offload == "cpu" else 0.0,
        nvme_gib=moved / GIB if offload == "nvme" else 0.0,
        on_cpu=on_cpu,
        available_gib=available_gib,
    )


def _gathered(shape: ModelShape) -> int:
    """Parameters whole at once: two layers (one computes, one is fetched ahead), or the embedding if that is more."""
    return max(2 * shape.layer_parameters, shape.vocab_size * shape.hidden_size)


def activation_bytes(shape: ModelShape, tokens: int, bytes_per_value: int, checkpointing: bool) -> int:
    """Values kept for the backward pass, with an attention kernel that keeps no score matrix.

    Of a layer and token: norm inputs and outputs, the residual (5 h); q before and after the rotation, attention's
    output and its gradient's statistics (4 q); k and v (3 kv); the MLP's intermediates (4 i gated, else 2 i), for each
    expert used. With checkpointing: every layer's input, and one whole layer.
    """
    wide = (4 if shape.gated else 2) * shape.intermediate_size * shape.experts_per_token
    layer = 5 * shape.hidden_size + 4 * shape.query_size + 3 * shape.kv_size + wide
    kept = shape.layers * shape.hidden_size + layer if checkpointing else shape.layers * layer
    return tokens * kept * bytes_per_value

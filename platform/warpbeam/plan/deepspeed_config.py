"""The DeepSpeed config: one function, every choice a typed keyword, its output held by golden files.

Nobody writes this JSON by hand, and nothing changes it afterwards: what the plan prints is what the engine gets.
"""

from __future__ import annotations

from typing import Any, Final, Literal

NEVER: Final = 1 << 30  # steps between DeepSpeed's own prints: the record has the metrics


def deepspeed_config(
    *,
    stage: Literal[1, 2, 3],
    micro_batch: int,
    accumulation: int,
    world_size: int,
    clip: float | None,
    precision: Literal["fp32", "bf16"],
    on_cpu: bool,
    offload: Literal["none", "cpu", "nvme"] = "none",
    offload_path: str | None = None,
) -> dict[str, Any]:
    """A config for `deepspeed.initialize`. The optimizer is not in it: the engine builds its own (two groups of AdamW).

    Args:
        stage: ZeRO stage.
        micro_batch: rows a rank computes at once.
        accumulation: micro-batches in an optimizer step.
        clip: largest gradient norm; None for none.
        on_cpu: gloo on CPUs: nothing to overlap with, no memory to pin.
        offload: optimizer states, and with stage 3 parameters too.
        offload_path: folder on a local disk, for nvme.
    """
    config: dict[str, Any] = {
        "train_batch_size": micro_batch * accumulation * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip or 0.0,
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": _zero(stage, on_cpu=on_cpu, offload=offload, offload_path=offload_path),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
    }
    if precision == "bf16":  # sums over micro-batches and ranks in bf16 would lose the small ones
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["communication_data_type"] = "fp32"
    return config


def _zero(stage: int, *, on_cpu: bool, offload: str, offload_path: str | None) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": not on_cpu, "contiguous_gradients": True}
    if on_cpu and stage == 3:
        # Keeping small parameters gathered costs one more collective at each step: a fifth of it at 1 M parameters.
        zero["stage3_param_persistence_threshold"] = 0
    if offload == "none":
        return zero
    if offload == "nvme" and not (stage == 3 and offload_path):
        raise ValueError(f"offload nvme needs stage 3 and a path, got stage {stage} and {offload_path}")
    target: dict[str, Any] = {"device": offload, "pin_memory": not on_cpu}
    if offload == "nvme":
        target["nvme_path"] = offload_path
    zero["offload_optimizer"] = target
    if stage == 3:
        zero["offload_param"] = dict(target)
    return zero

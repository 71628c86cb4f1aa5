"""One row of numbers for each step, under torchtitan's names, and where rows, events and heartbeats go."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from warpbeam.errors import RunFailed
from warpbeam.plan.plan import Plan
from warpbeam.train.flops import model_flops_per_token


class Sink(Protocol):
    """Where a rank's metrics, events and signs of life go (`record.RecordWriter`). Nothing here may wait for I/O."""

    stop_requested: dict[str, Any] | None

    def event(self, kind: str, **fields: Any) -> None: ...
    def metrics(self, row: Mapping[str, Any]) -> None: ...
    def beat(self, step: int, phase: str | None = None) -> None: ...
    def mark(self, phase: str, *, passes: bool = False) -> None: ...
    def left_loop(self) -> None: ...
    def flush_soon(self) -> None: ...


class StepMeter:
    """Turns clock readings into the row of a step.

    Args:
        tokens_per_step: of the global batch, padding included.
        flops_per_token: of forward and backward; None where the model's shape is not known.
        peak_flops: of one accelerator; None where it is not known.
    """

    def __init__(
        self,
        *,
        tokens_per_step: int,
        world_size: int,
        device: torch.device,
        flops_per_token: float | None,
        peak_flops: float | None,
    ) -> None:
        self._tokens = tokens_per_step
        self._world = world_size
        self._device = device
        self._flops = flops_per_token
        self._peak = peak_flops
        self._since = time.perf_counter()
        self.data_wait_s = 0.0

    @classmethod
    def of(
        cls, model: torch.nn.Module, parameters: int, plan: Plan, device: torch.device, peak_flops: float | None
    ) -> StepMeter:
        """For a model of so many parameters, trained by a plan."""
        config = getattr(model, "config", None)
        return cls(
            tokens_per_step=plan.tokens_per_step,
            world_size=plan.world_size,
            device=device,
            flops_per_token=model_flops_per_token(config, parameters, plan.seq_len) if config is not None else None,
            peak_flops=peak_flops,
        )

    def restart(self) -> None:
        """The next step begins now (after an evaluation or a checkpoint, whose time is not the step's)."""
        self._since = time.perf_counter()
        self.data_wait_s = 0.0

    def row(self, step: int) -> dict[str, float | int]:
        """Close the step. `throughput(tps)` and `tflops` are of one device, as in torchtitan."""
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        tps = self._tokens / seconds / self._world
        row: dict[str, float | int] = {
            "step": step,
            "throughput(tps)": tps,
            "throughput/global_tps": tps * self._world,
            "time_metrics/end_to_end(s)": seconds,
            "time_metrics/data_loading(s)": self.data_wait_s,
            "time_metrics/data_loading(%)": 100 * self.data_wait_s / seconds,
            "n_tokens_seen": step * self._tokens,
            **self._memory(),
        }
        if self._flops is not None:
            row["tflops"] = tps * self._flops / 1e12
            if self._peak is not None:
                row["mfu(%)"] = 100 * tps * self._flops / self._peak
        self.restart()
        return row

    def _memory(self) -> dict[str, float]:
        if self._device.type == "cuda":
            return {"memory/max_reserved(GiB)": torch.cuda.max_memory_reserved(self._device) / 2**30}
        return {"memory/max_rss(GiB)": max_rss_bytes() / 2**30}


def number(value: torch.Tensor | float) -> float:
    """A scalar on this host; one that is spread over ranks is put together, which is collective."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def max_rss_bytes() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def refuse_not_finite(sink: Sink, run: str, step: int, loss: float, norm: float | None) -> None:
    """Raise RunFailed where the step's loss or gradient norm is no finite number; the record has it first."""
    if math.isfinite(loss) and (norm is None or (math.isfinite(norm) and norm >= 0)):
        return
    bad = "loss" if not math.isfinite(loss) else "gradient norm"
    sink.event("not_finite", step=step, loss=str(loss), grad_norm=str(norm))
    raise RunFailed(
        f"the {bad} of step {step} is not a finite number (loss {loss}, gradient norm {norm})",
        why="the model has diverged, or a record or a hook gives numbers that overflow; nothing was saved for it",
        fix=f"lower train.lr or lengthen train.warmup; `warpbeam data show {run} --step {step}` shows its records",
        reason="not_finite",
    )

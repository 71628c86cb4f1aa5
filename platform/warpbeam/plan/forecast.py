"""Memory, time, money and fit of one setup on one kind of machines, in plain numbers that every view prints.

The formulas are in plan/memory.py and plan/step_time.py; here they meet the pool, and what finished runs on it taught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from warpbeam.plan.correction import Correction
from warpbeam.plan.flops import attention_flops_per_token, matrix_flops_per_token
from warpbeam.plan.layouts import runs_here
from warpbeam.plan.machine import STORE_BYTES_PER_S, Machine
from warpbeam.plan.memory import PARTS, MemorySum, memory
from warpbeam.plan.memory_terms import MOMENT_BYTES, adapter_parameters
from warpbeam.plan.setup import Setup
from warpbeam.plan.step_time import StepTime, step_time

GIB: Final = 1 << 30
MASTER_BYTES: Final = 4.0
"""Of a parameter in a checkpoint, beside the optimizer's moments (checkpoint/manifest.py)."""
STATES: Final = ("parameters", "gradients", "optimizer", "offloaded")
CALIBRATED_MARGIN: Final = 0.06
"""Of the expected peak, where a run on the same pool has corrected it; without, plan/memory.py's margin."""
FORMULAS: Final = {
    "mfu_6n": "6 N tokens / (seconds x accelerators x peak); N: parameters a token uses, all embeddings included",
    "mfu_full": "(6 N + 12 L H s) tokens / (seconds x accelerators x peak); H: heads x head_dim, s: the sequence, or a "
    "layer's sliding window where that is shorter; no causal discount",
    "flops_per_token": "matrices: 6 x their weights, no lookup table; attention: 12 L H s, s as in mfu_full",
    "memory": "states by ZeRO stage, activations as Korthikanti et al. 2022; the margin makes the fit a promise of 95%",
    "step_time": "a roofline of each class of operations, alpha-beta collectives less what overlaps, the 1F1B bubble",
    "cost": "accelerators x hours x the pool's price",
    "checkpoint": "4 bytes (fp32) and the optimizer's moments (AdamW: 8) a trained parameter, at 1 GB/s of each node",
}
FROZEN_FORMULAS: Final = {  # under adapters: what is frozen has no gradient of its own
    "mfu_6n": "4 N tokens / (seconds x accelerators x peak): the weights are frozen under adapters; N as in 6 N",
    "mfu_full": "(4 N + 8 L H s) tokens / (seconds x accelerators x peak); H: heads x head_dim, s: the sequence, or a "
    "layer's sliding window where that is shorter; no causal discount",
    "flops_per_token": "matrices: 4 x their weights, no lookup table; attention: 8 L H s, s as in mfu_full",
    "checkpoint": "4 bytes (fp32) and the optimizer's moments (AdamW: 8) for each element of the adapters; the frozen "
    "base is not stored",
}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one setup would take.

    Attributes:
        strategy: one line: `zero3`, `fsdp tp2`, `distributed_optimizer tp8 pp16`.
        runs_here: this version of Warpbeam can run it.
        memory_parts: GiB of one rank; they sum to `memory_gib`, the expected peak.
        margin_gib: above it, so that a fit is a promise.
        likely: it will more likely run than not, though the promise may not hold.
        available_gib: what a rank may use.
        host_gib, nvme_gib: offloaded by one rank.
        host_lacks_gib: what the ranks of a node want of the host's memory beyond what the pool says there is.
        time_parts: seconds; they sum to `step_s`. Empty where time is not known.
        mfu_6n, mfu_full: 0 to 1; None on CPUs, whose peak is an assumption.
        trained: of `parameters`, or of the adapters beside them, what the optimizer updates.
        moment_bytes: of the optimizer's states, for each of those.
        frozen: the parameters are, under adapters.
        matrix_flops, attention_flops: of one token, forward and backward.
    """

    strategy: str
    runs_here: bool
    fits: bool
    likely: bool
    accelerators: int
    micro_batch: int
    accumulation: int
    checkpointing: str
    offload: str
    memory_parts: Mapping[str, float]
    memory_gib: float
    margin_gib: float
    available_gib: float
    host_gib: float
    nvme_gib: float
    time_parts: Mapping[str, float]
    step_s: float
    tokens: int
    mfu_6n: float | None
    mfu_full: float | None
    price: float | None = None
    nodes: int = 1
    parameters: int = 0
    trained: int | None = None
    moment_bytes: float = 8.0
    frozen: bool = False
    host_lacks_gib: float = 0.0
    matrix_flops: int = 0
    attention_flops: int = 0
    corrected_by: tuple[str, ...] = field(default=())

    @property
    def tokens_per_s(self) -> float:
        """Of the whole job."""
        return self.tokens / self.step_s

    @property
    def checkpoint_bytes(self) -> int:
        """Of what is trained: master weights and moments; weights frozen under adapters are not stored again."""
        trained = self.parameters if self.trained is None else self.trained
        return round((MASTER_BYTES + self.moment_bytes) * trained)

    @property
    def checkpoint_s(self) -> float:
        """To write one, every node its part."""
        return self.checkpoint_bytes / (STORE_BYTES_PER_S * self.nodes)

    @property
    def promised_gib(self) -> float:
        """The expected peak and its margin: what must be there."""
        return self.memory_gib + self.margin_gib

    def hours(self, steps: int | None) -> float | None:
        """Of `steps` optimizer steps; None where their number is not known."""
        return None if steps is None else steps * self.step_s / 3600

    def cost(self, steps: int | None) -> float | None:
        """In the pool's currency; None without a price or a number of steps."""
        hours = self.hours(steps)
        return None if hours is None or self.price is None else hours * self.accelerators * self.price

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back."""
        return asdict(self) | {"corrected_by": list(self.corrected_by)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Forecast:
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        return cls(**known | {"corrected_by": tuple(value.get("corrected_by", ()))})


def forecast(setup: Setup, machine: Machine, correction: Correction | None = None) -> Forecast:
    """Predict `setup` on `machine`. Pure."""
    needed, time = memory_of(setup, machine), step_time(setup, machine.chip)
    parts, margin, edge = _corrected_memory(needed, correction)
    seconds = _corrected_time(time, correction)
    total, step_s = sum(parts.values()), sum(seconds.values())
    share = time.step_s / step_s
    shape, recipe, lora = setup.shape, setup.recipe, setup.recipe.lora
    flops = matrix_flops_per_token(shape), attention_flops_per_token(shape, recipe.seq_len)
    return Forecast(
        strategy=strategy_words(setup),
        runs_here=runs_on(setup, machine),
        fits=_fits(needed, total + margin, machine),
        likely=_fits(needed, total + edge, machine),
        accelerators=setup.layout.accelerators,
        micro_batch=setup.recipe.micro_batch,
        accumulation=setup.accumulation,
        checkpointing=setup.recipe.checkpointing,
        offload=setup.layout.offload,
        memory_parts=parts,
        memory_gib=total,
        margin_gib=margin,
        available_gib=machine.memory_gib,
        host_gib=needed.host_gib,
        nvme_gib=needed.nvme_gib,
        time_parts=seconds,
        step_s=step_s,
        tokens=time.tokens,
        mfu_6n=None if machine.is_cpu else time.mfu_6n * share,
        mfu_full=None if machine.is_cpu else time.mfu_full * share,
        price=machine.price,
        nodes=machine.nodes,
        parameters=shape.parameters,
        trained=shape.parameters if lora is None else round(adapter_parameters(shape, lora)),
        moment_bytes=MOMENT_BYTES[recipe.optimizer],
        frozen=lora is not None,
        host_lacks_gib=_host_lacks(needed, machine),
        matrix_flops=flops[0] if lora is None else flops[0] * 2 // 3,
        attention_flops=flops[1] if lora is None else flops[1] * 2 // 3,
        corrected_by=correction.runs if correction else (),
    )


def formulas(found: Forecast) -> dict[str, str]:
    """What each number of a forecast is made of."""
    return FORMULAS | FROZEN_FORMULAS if found.frozen else dict(FORMULAS)


def quick_memory(
    setup: Setup, machine: Machine, correction: Correction | None = None, *, promise: bool = True
) -> tuple[float, bool]:
    """(promised GiB of a rank, whether that fits): the inner loop of a search. Without `promise`: what likely runs."""
    needed = memory_of(setup, machine)
    if correction is None:
        room = needed.promised_gib if promise else needed.total_gib + needed.edge_gib
    else:
        parts, margin, edge = _corrected_memory(needed, correction)
        room = sum(parts.values()) + (margin if promise else edge)
    return room, _fits(needed, room, machine)


def quick_seconds(setup: Setup, machine: Machine, correction: Correction | None = None) -> float:
    """Seconds of a step: the inner loop of a search. A correction is a factor, and changes no order."""
    return step_time(setup, machine.chip).step_s * (correction.time_factor if correction else 1.0)


def runs_on(setup: Setup, machine: Machine) -> bool:
    """Whether this version runs it on these machines: not on TPUs."""
    return machine.chip.form != "tpu" and runs_here(setup)


def memory_of(setup: Setup, machine: Machine) -> MemorySum:
    """The uncorrected sum of one rank."""
    return memory(setup, machine.memory_gib, on_cpu=machine.is_cpu)


def strategy_words(setup: Setup) -> str:
    """`zero3`, `fsdp tp2`, `distributed_optimizer tp8 pp16 interleaved x2`: what a person calls this layout."""
    layout = setup.layout
    split = [f"{name}{getattr(layout, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if layout.virtual_stages > 1:
        split.append(f"interleaved x{layout.virtual_stages}")
    lora = setup.recipe.lora
    adapters = [] if lora is None else [f"QLoRA-{lora.base_bits}bit" if lora.quantised else "LoRA"]
    return " ".join([layout.sharding, *split, *adapters])


def _fits(needed: MemorySum, room_gib: float, machine: Machine) -> bool:
    return _host_lacks(needed, machine) == 0 and room_gib <= machine.memory_gib


def _host_lacks(needed: MemorySum, machine: Machine) -> float:
    if machine.is_cpu or machine.host_gib is None:
        return 0.0
    return max(0.0, needed.host_gib * min(machine.per_node, machine.accelerators) - machine.host_gib)


def memory_parts(needed: MemorySum) -> dict[str, float]:
    """Name -> GiB; they sum to the expected peak."""
    parts: dict[str, float] = {name.removesuffix("_gib"): getattr(needed, name) for name in PARTS}
    return parts | ({"offloaded": needed.host_gib} if needed.on_cpu else {})


def _corrected_memory(needed: MemorySum, correction: Correction | None) -> tuple[dict[str, float], float, float]:
    """(parts, margin of the promise, room of what likely runs)."""
    parts = memory_parts(needed)
    if correction is None:
        return parts, needed.margin_gib, needed.edge_gib
    for name in parts:
        parts[name] *= 1.0 if name in STATES else correction.memory_factor
    if correction.memory_offset_gib:
        parts["calibration"] = max(correction.memory_offset_gib, 0.01 - sum(parts.values()))
    total = sum(parts.values())
    return parts, CALIBRATED_MARGIN * total, needed.edge_gib / needed.total_gib * total


def _corrected_time(time: StepTime, correction: Correction | None) -> dict[str, float]:
    if correction is None:
        return time.parts()
    parts = {name: seconds * correction.time_factor for name, seconds in time.parts().items()}
    return parts | {"data_wait": correction.data_wait_s}

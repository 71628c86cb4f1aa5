"""The memory one rank needs, in parts: physical terms (plan/memory_terms.py) times a few fitted coefficients.

A fit is a promise: the expected peak and a margin, below which 19 of 20 measured peaks stay, must be there. Short of
the promise, `likely` is the better guess of what will happen: the expected peak and a little room are there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from warpbeam.plan.memory_coefficients import MemoryCoefficients, StackCoefficients, fitted
from warpbeam.plan.memory_terms import GIB, Terms, stage_terms
from warpbeam.plan.setup import Setup

__all__ = ["GIB", "PARTS", "MemorySum", "Statistic", "memory"]

Statistic = Literal["allocated", "reserved", "device"]
CPU_PROCESS_GIB: Final = 1.05  # of one rank: torch, Ray, DeepSpeed (measured by planner_calibrate)
PARTS: Final = (
    "parameters_gib",
    "gradients_gib",
    "optimizer_gib",
    "activations_gib",
    "logits_gib",
    "communication_gib",
    "context_gib",
    "fragmentation_gib",
)


@dataclass(frozen=True, kw_only=True)
class MemorySum:
    """What one rank of the fullest pipeline stage holds at its peak, in GiB.

    Attributes:
        optimizer_gib: states, and the step's temporary buffers where they do not fit into the activations' room.
        logits_gib: logits, their fp32 copies and gradient.
        communication_gib: layers gathered by ZeRO-3 or FSDP, NCCL's and the libraries' buffers.
        context_gib: outside the allocator: CUDA context; on CPUs the process itself.
        fragmentation_gib: what the allocator holds and nobody uses.
        margin_gib: above the expected total: 19 of 20 published runs of the stack stay below the two together.
        host_gib: offloaded to host memory; on a CPU pool that is the same memory.
        nvme_gib: offloaded to disk.
        edge_gib: above the expected total, less than the margin: `likely`.
        available_gib: the accelerator's memory, or a CPU rank's share of its node.
    """

    parameters_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    logits_gib: float
    communication_gib: float
    context_gib: float
    fragmentation_gib: float
    margin_gib: float
    edge_gib: float
    host_gib: float
    nvme_gib: float
    on_cpu: bool
    available_gib: float

    @property
    def allocated_gib(self) -> float:
        """As `torch.cuda.max_memory_allocated` counts."""
        return (
            self.parameters_gib
            + self.gradients_gib
            + self.optimizer_gib
            + self.activations_gib
            + self.logits_gib
            + self.communication_gib
        )

    @property
    def reserved_gib(self) -> float:
        """As `torch.cuda.max_memory_reserved` counts."""
        return self.allocated_gib + self.fragmentation_gib

    @property
    def total_gib(self) -> float:
        """As `nvidia-smi` shows it: the sum of the parts; on a CPU pool with what is offloaded to the host."""
        return self.reserved_gib + self.context_gib + (self.host_gib if self.on_cpu else 0.0)

    @property
    def promised_gib(self) -> float:
        """The expected total and its margin."""
        return self.total_gib + self.margin_gib

    @property
    def fits(self) -> bool:
        """The promise holds."""
        return self.promised_gib <= self.available_gib

    @property
    def likely(self) -> bool:
        """It runs more likely than not: the published runs called so ran out in less than one of twenty cases."""
        return self.total_gib + self.edge_gib <= self.available_gib

    def measured_as(self, statistic: Statistic) -> float:
        """The expected peak in a measurement's own terms, GiB."""
        return {"allocated": self.allocated_gib, "reserved": self.reserved_gib, "device": self.total_gib}[statistic]

    def to_dict(self) -> dict[str, Any]:
        """With the total and the answer, for `--json`."""
        return asdict(self) | {
            "total_gib": self.total_gib,
            "promised_gib": self.promised_gib,
            "fits": self.fits,
            "likely": self.likely,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> MemorySum:
        return cls(**{key: value[key] for key in cls.__dataclass_fields__})


def memory(
    setup: Setup,
    available_gib: float,
    *,
    on_cpu: bool = False,
    last_stage: bool = False,
    coefficients: MemoryCoefficients | None = None,
) -> MemorySum:
    """The peak of one rank of `setup`.

    Args:
        available_gib: of the accelerator (`Chip.memory_gib`), or a CPU rank's share of its node.
        last_stage: of a pipeline's last stage instead of its fullest (some published runs report that one).
        coefficients: others than the fitted ones.
    """
    known = coefficients or fitted()
    stack = known.of(setup.layout.stack)
    found = _sum(setup, stage_terms(setup, last=True), stack, known, available_gib, on_cpu)
    if setup.layout.pp > 1 and not last_stage:
        first = _sum(setup, stage_terms(setup, last=False), stack, known, available_gib, on_cpu)
        found = max(first, found, key=lambda stage: stage.total_gib)
    return found


def _sum(
    setup: Setup, terms: Terms, stack: StackCoefficients, known: MemoryCoefficients, available_gib: float, on_cpu: bool
) -> MemorySum:
    layers, kept, logits, step = dynamic_parts(setup, terms, stack)
    parameters, gradients = terms.parameters + terms.quantised * stack.quantised, terms.gradients
    optimizer = terms.optimizer + step
    activations = layers + kept
    communication = terms.gathered * stack.gathered + (0.0 if on_cpu else stack.fixed_gib)
    allocated = parameters + gradients + optimizer + activations + logits + communication
    fragmentation = 0.0 if on_cpu else allocated * stack.fragmentation
    context = CPU_PROCESS_GIB if on_cpu else known.context_gib
    nvme = setup.layout.offload == "nvme"
    total = allocated + fragmentation + context + (terms.host if on_cpu and not nvme else 0.0)
    return MemorySum(
        parameters_gib=parameters,
        gradients_gib=gradients,
        optimizer_gib=optimizer,
        activations_gib=activations,
        logits_gib=logits,
        communication_gib=communication,
        context_gib=context,
        fragmentation_gib=fragmentation,
        margin_gib=total * (stack.p95 - 1),
        edge_gib=(total - parameters - gradients - optimizer) * (known.edge - 1),
        host_gib=0.0 if nvme else terms.host,
        nvme_gib=terms.host if nvme else 0.0,
        on_cpu=on_cpu,
        available_gib=available_gib,
    )


def dynamic_parts(setup: Setup, terms: Terms, stack: StackCoefficients) -> tuple[float, float, float, float]:
    """(layers, kept inputs, logits, the step's buffers beyond the room of the first three), GiB."""
    checkpointing = setup.recipe.checkpointing
    scale = stack.full if checkpointing == "full" else stack.selective if checkpointing == "selective" else stack.none
    layers = terms.layer * terms.layers * scale
    kept = terms.kept * stack.kept
    logits = terms.logits * stack.logit_bytes
    step = terms.trainable * stack.step_bytes
    if setup.layout.offload != "none":
        step = 0.0  # on the host
    if stack.reuses:
        step = max(0.0, step - layers - kept - logits)
    return layers, kept, logits, step

"""What a plan computes on: one rank's accelerator and the machines around it, from a pool or from words on a command
line (`16xH100`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from warpbeam.errors import UserError
from warpbeam.plan.hardware import Chip, find_chip, override

if TYPE_CHECKING:
    from warpbeam.pool import Pool

STORE_BYTES_PER_S: Final = 1e9
"""What one node writes to the object store; an assumption that plans state (a pool's storage may be asked instead)."""
FIGURES: Final = tuple(
    name for name in Chip.__dataclass_fields__ if name not in ("name", "family", "generation", "form", "memory_gib")
)
"""What a pool may state in the place of a datasheet (memory has its own key)."""
DESCRIBES: Final = ("peak_bf16", "peak_fp32", "memory_bandwidth")
"""The figures without which an accelerator that the catalogue lacks cannot be planned."""
NOMINAL: Final = 0.1
MOST_ACCELERATORS: Final = 1 << 20
WORDS: Final = re.compile(r"\s*(\d+)\s*[x*]\s*(\S.*?)\s*", re.IGNORECASE)
_MORE: Final = re.compile(r"[,;+&]|\s[x*]\s*\d+\s*$", re.IGNORECASE)
"""Words after the first kind: a second one would silently be left out."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Accelerators of one kind.

    Attributes:
        chip: one rank's accelerator; on CPUs, the cores that one rank has.
        accelerators: ranks.
        per_node: ranks that sit in one node.
        most: ranks that the pool has.
        shared: the CPU pool whose cores and memory its ranks share.
        node_size: accelerators of a whole node, where there may be more than these; 0 where a node has no more.
        link_domain: accelerators that fast links connect (NVLink); tensor parallelism stays within.
        memory_gib: what one rank may use.
        host_gib: host memory of a node that offloaded states may fill; None where nobody said.
        price: of one accelerator and hour; None where nobody said.
        pool, kind: whose machines these are and what it calls them, for corrections; None for a question in passing.
    """

    chip: Chip
    accelerators: int
    per_node: int
    link_domain: int
    memory_gib: float
    host_gib: float | None = None
    price: float | None = None
    pool: str | None = None
    kind: str = ""
    node_size: int = 0
    most: int | None = None
    shared: Pool | None = field(default=None, compare=False, repr=False)

    @property
    def is_cpu(self) -> bool:
        return self.chip.form == "host"

    @property
    def nodes(self) -> int:
        return -(-self.accelerators // self.per_node)

    def resized(self, accelerators: int) -> Machine:
        """The same machines, more or fewer of them; each rank of a CPU pool then has another part of it."""
        if self.shared is not None:
            return machine_of(self.shared, accelerators)
        per_node = min(accelerators, self.node_size or self.per_node)
        return replace(self, accelerators=accelerators, per_node=per_node)


def shares_cores(machine: Machine) -> bool:
    """Whether more ranks make each of them slower: those of a CPU pool share its cores."""
    return machine.shared is not None


def machine_of(pool: Pool, ranks: int) -> Machine:
    """`ranks` of a pool's accelerators. Raises UserError where the catalogue has no such accelerator."""
    chip = _chip(pool)
    figures = dict(pool.accelerator.figures)
    if pool.is_cpu:
        per_node = -(-ranks // pool.nodes)
        cores = pool.accelerators_per_node / per_node
        chip = override(chip, peak_fp32=chip.peak_fp32 * cores, memory_bandwidth=chip.memory_bandwidth * cores)
    else:
        per_node = min(pool.accelerators_per_node, ranks)
    stated = pool.memory_per_rank_gib(ranks)
    memory_gib = stated if pool.is_cpu else _usable_gib(stated, chip)
    chip = override(chip, memory_gib=memory_gib, **figures)
    return Machine(
        chip=chip,
        accelerators=ranks,
        per_node=per_node,
        link_domain=int(min(chip.link_domain, pool.accelerators_per_node)),
        memory_gib=memory_gib,
        host_gib=pool.host_memory_gib,
        price=pool.price_per_accelerator_hour,
        pool=pool.name,
        kind=pool.accelerator.kind,
        node_size=0 if pool.is_cpu else pool.accelerators_per_node,
        most=pool.max_ranks,
        shared=pool if pool.is_cpu else None,
    )


def _chip(pool: Pool) -> Chip:
    """The catalogue's chip, or one that the pool describes itself: PCIe in a node, and the figures it gives."""
    kind, figures = pool.accelerator.kind, pool.accelerator.figures
    try:
        return find_chip(kind)
    except UserError as error:
        if all(name in figures for name in DESCRIBES):
            own: dict[str, Any] = {"name": kind, "family": kind, "memory_gib": pool.accelerator.memory_gib}
            return replace(find_chip("H100-PCIe-80GB"), **own, peak_fp8=0.0, power_w=0.0)
        example = ", ".join(f"{name}: ..." for name in DESCRIBES)
        raise UserError(
            f"pool `{pool.name}`: {error.what}",
            fix=f"{error.fix}; or describe it under accelerator: `figures: {{{example}}}` (FLOP/s and bytes/s)",
            reason=error.reason,
        ) from None


def _usable_gib(stated: float, chip: Chip) -> float:
    """What a process gets of a nominal size: 79.1 of an H100's 80. Much less or more is meant as it is written."""
    return min(stated, chip.memory_gib) if abs(stated - chip.memory_gib) <= NOMINAL * stated else stated


def machine_from_words(words: str) -> Machine:
    """`16xH100`, `8 x A100-40GB`: a node is as large as the accelerator's links reach; 8 cards where
    none do.

    Raises UserError for words that name no number and accelerator, or an accelerator the catalogue lacks.
    """
    match = WORDS.fullmatch(words)
    if match is not None and int(match[1][:10]) > MOST_ACCELERATORS:
        raise UserError(
            f"`{words}` is more than the {MOST_ACCELERATORS:,} accelerators that the planner shares work among",
            fix="write fewer, as many as share the global batch",
            reason="bad_accelerators",
        )
    if match is None or int(match[1]) < 1 or _MORE.search(match[2]):
        raise UserError(
            f"`{words}` is no number of accelerators of a kind",
            fix="write for example `--accelerators 16xH100`, or name a pool: --accelerators 16 --pool h100",
            reason="bad_accelerators",
        )
    count, chip = int(match[1]), find_chip(match[2])
    in_node = chip.link_domain if chip.form in ("sxm", "oam", "tpu") and chip.link_domain > 1 else 8
    return Machine(
        chip=chip,
        accelerators=count,
        per_node=min(count, in_node),
        link_domain=chip.link_domain,
        memory_gib=chip.memory_gib,
        node_size=in_node,
    )

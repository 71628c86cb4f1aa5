"""The words of the linter: a setting, the ground it is to work on, a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

JOB: Final = "job env"
POOL: Final = "pool env"
FABRIC: Final = "pool kubernetes.fabric.env"
SHELL: Final = "this shell"
"""Where a variable is set, and is to be changed."""


class Level(StrEnum):
    """How bad: a launch with it fails or hangs; or it runs, slower or with less to go by than it could."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Setting:
    """A variable as the ranks get it; `source` is one of the places above."""

    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What the variables are to work on, as far as it is known without a GPU.

    Attributes:
        accelerator: the pool's kind: `cpu`, `H100-SXM`.
        nodes, ranks_per_node: of the pool.
        cores_per_node: None where the pool does not say.
        in_pods: ranks run in pods, whose interfaces are Kubernetes' (`eth0`), not the node's.
        networks: names of secondary networks that the pods get.
        rdma: resources of a fast fabric that the pool gives its pods; None: no word of it.
        interfaces: of this machine, where the ranks run here: name -> is up. None: nobody has looked.
        hcas: RDMA devices of this machine, likewise.
    """

    accelerator: str
    nodes: int
    ranks_per_node: int
    cores_per_node: float | None = None
    in_pods: bool = False
    networks: tuple[str, ...] = ()
    rdma: tuple[str, ...] | None = None
    interfaces: Mapping[str, bool] | None = None
    hcas: frozenset[str] | None = None

    @property
    def on_gpu(self) -> bool:
        return self.accelerator != "cpu"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with one variable."""

    level: Level
    variable: str
    value: str
    source: str
    what: str
    why: str
    do: str
    rule: str

    @property
    def headline(self) -> str:
        """What is wrong with what, and where it was set."""
        return f"{self.variable}={self.value} ({self.source}) {self.what}"


@dataclass(frozen=True)
class Environment:
    """All settings of a rank, with the words for a finding about one of them."""

    settings: Mapping[str, Setting] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """The value, without the white space around it; None where it is not set, or set to nothing."""
        setting = self.settings.get(name)
        return (setting.value.strip() or None) if setting is not None else None

    def number(self, name: str) -> int | None:
        """The value as libraries read whole numbers; None where it is not set or none."""
        try:
            return int(self.get(name) or "", 0)
        except ValueError:
            return None

    def finding(self, rule: str, level: Level, variable: str, what: str, *, why: str, do: str) -> Finding:
        """A finding about a variable that is set."""
        setting = self.settings[variable]
        return Finding(
            level=level,
            variable=variable,
            value=setting.value,
            source=setting.source,
            what=what,
            why=why,
            do=do,
            rule=rule,
        )


Check = Callable[[Environment, Ground], Iterator[Finding]]
"""A rule: what it finds wrong. Pure."""

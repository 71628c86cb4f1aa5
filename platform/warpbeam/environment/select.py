"""How NCCL and gloo read a list of interfaces or adapters. Pure; nobody is asked what there is.

NCCL (its user guide, NCCL_SOCKET_IFNAME and NCCL_IB_HCA): names by comma, each a prefix of what it means; `=` before
the list: whole names; `^`: all but those; an adapter may have a port, `mlx5_0:1`. Gloo knows whole names only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """A list as NCCL reads it."""

    names: tuple[str, ...]
    exact: bool
    excluding: bool

    @classmethod
    def parse(cls, value: str) -> Selection:
        excluding = value.startswith("^")
        rest = value.removeprefix("^")
        exact = rest.startswith("=")
        names = tuple(name.strip() for name in rest.removeprefix("=").split(",") if name.strip())
        return cls(names, exact, excluding)

    def takes(self, name: str) -> bool:
        """Whether an interface or adapter of this name is used."""
        named = any(self._means(part.partition(":")[0], name) for part in self.names)
        return named != self.excluding

    def misses(self, there: Iterable[str]) -> list[str]:
        """The names that mean nothing of what is there; an exclusion misses nothing."""
        found = list(there)
        if self.excluding:
            return []
        return [part for part in self.names if not any(self._means(part.partition(":")[0], name) for name in found)]

    def _means(self, part: str, name: str) -> bool:
        return name == part if self.exact else name.startswith(part)


def gloo_names(value: str) -> tuple[str, ...]:
    """The interfaces of GLOO_SOCKET_IFNAME."""
    return tuple(name.strip() for name in value.split(",") if name.strip())

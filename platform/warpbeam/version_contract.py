"""The version contract: what a pool says that its image holds, beside what is really there.

A run that was planned for one set of versions and starts on another fails late and strangely (a collective that hangs,
a checkpoint that cannot be read), so it is refused: by the laptop before anything is made, by the driver before it asks
for ranks, by each rank before the engine's first collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packaging.version import InvalidVersion, Version

from warpbeam.errors import PlatformError
from warpbeam.pool import Pool

OURS: Final = "warpbeam"
_FLOOR: Final = "driver"
"""Declared as the oldest that will do; all else is meant as it stands, to the digits that it has."""
_OF_THE_NODE: Final = frozenset({_FLOOR})
"""Not in the image: a machine without an accelerator has none."""


def broken(declared: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """One line for each version that is not as declared, with both values. Pure.

    Args:
        declared: name -> version, of the pool's `image.versions`.
        installed: name -> version, as `versions.installed_versions` gives them.
    """
    found = []
    for name, wanted in declared.items():
        here = installed.get(name)
        if here is None and name in _OF_THE_NODE:
            continue
        if here is None:
            found.append(f"{name}: the pool says {wanted}, and it is not installed")
        elif not _holds(name, wanted, here):
            least = " or newer" if name == _FLOOR else ""
            found.append(f"{name}: the pool says {wanted}{least}, here is {here}")
    return found


def hold_to(declared: Mapping[str, str], installed: Mapping[str, str], where: str) -> None:
    """Go on only with what the pool declares.

    Args:
        where: "this pod", "rank 3's pod".

    Raises:
        PlatformError: something else is installed; with both values.
    """
    if wrong := broken(declared, installed):
        raise PlatformError(
            f"{where} does not hold what the pool says: {wrong[0]}"
            + (f" (and {len(wrong) - 1} more)" if wrong[1:] else ""),
            why="; ".join(wrong),
            fix="let `image.ref` and `image.versions` of the pool name the same image: `warpbeam version --check` "
            "inside prints what it holds",
            reason="version_contract",
        )


def refuse_other_versions(pool: Pool, installed: Mapping[str, str]) -> None:
    """The laptop's part: it plans and packs for the version of ours that the image has.

    Raises:
        PlatformError: this machine has another one.
    """
    declared, here = (pool.image.versions if pool.image else {}).get(OURS), installed.get(OURS)
    if declared is None or here is None or _holds(OURS, declared, here):
        return
    raise PlatformError(
        f"this machine has warpbeam {here}, and the image of pool `{pool.name}` has {declared}",
        why="the job would be planned by one version and run by another",
        fix=f"`pip install warpbeam=={declared}` here, or a pool whose image has {here}; --force sends it all the same",
        reason="version_contract",
    )


def _holds(name: str, wanted: str, here: str) -> bool:
    try:
        asked, found = Version(wanted), Version(Version(here).base_version)
    except InvalidVersion:
        return wanted == here
    if name == _FLOOR:
        return found >= asked
    return found.release[: len(asked.release)] == asked.release

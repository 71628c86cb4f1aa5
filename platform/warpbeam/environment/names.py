"""Rules about the names of variables: nobody reads it, it was renamed, it is not the user's to set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warpbeam.environment.known import RENAMED, is_unknown, known, meant, slip_of
from warpbeam.environment.setting import Check, Environment, Finding, Ground, Level

_GROUP: Final = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
_LOADED_FIRST: Final = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def unknown_name(env: Environment, _: Ground) -> Iterator[Finding]:
    """Read by none of the tested libraries: set in vain, most often a slip."""
    for name in env.settings:
        if name in RENAMED:
            yield env.finding(
                "renamed",
                Level.WARNING,
                name,
                f"is the old name of what {RENAMED[name]} does now",
                why="the tested versions of NCCL and torch read the new one",
                do=f"write {RENAMED[name]}",
            )
        elif is_unknown(name) or slip_of(name):
            near = slip_of(name) or meant(name)
            yield env.finding(
                "unknown_name",
                Level.WARNING,
                name,
                "is read by none of the tested libraries",
                why="a variable that nobody reads fails silently: what it was to change stays as it was",
                do=f"did you mean {near}?" if near else "leave it out, unless a plugin of the image reads it",
            )
        elif name != name.upper() and (is_unknown(name.upper()) or name.upper() in known()):
            yield env.finding(
                "lower_case",
                Level.WARNING,
                name,
                "is not in capitals",
                why="names of variables are compared letter by letter",
                do=f"write {name.upper()}",
            )


def group_by_hand(env: Environment, _: Ground) -> Iterator[Finding]:
    """Who is which rank, and where they meet, is the launcher's to say."""
    for name in _GROUP:
        if env.get(name) is not None:
            yield env.finding(
                "group_by_hand",
                Level.ERROR,
                name,
                "is set for all ranks alike",
                why="the launcher gives each rank its own; a fixed one makes all of them the same rank",
                do="leave it out",
            )
    if env.get("NCCL_COMM_ID") is not None:
        yield env.finding(
            "comm_id",
            Level.ERROR,
            "NCCL_COMM_ID",
            "fixes where every communicator meets",
            why="torch makes several communicators in one job, and each needs a meeting point of its own",
            do="leave it out; torch hands the ids round by its own store",
        )


def devices_by_hand(env: Environment, ground: Ground) -> Iterator[Finding]:
    """Which devices a rank sees is Ray's, and the device plugin's, to say."""
    if not ground.on_gpu:
        return
    if env.get("CUDA_VISIBLE_DEVICES") is not None:
        yield env.finding(
            "visible_devices",
            Level.ERROR,
            "CUDA_VISIBLE_DEVICES",
            "is set for all ranks alike",
            why="Ray gives each rank its own GPU by it; a fixed one puts several ranks on the same GPU",
            do="leave it out",
        )
    if ground.in_pods and env.get("NVIDIA_VISIBLE_DEVICES") is not None:
        yield env.finding(
            "nvidia_visible_devices",
            Level.ERROR,
            "NVIDIA_VISIBLE_DEVICES",
            "goes around the device plugin",
            why="the container gets GPUs that Kubernetes has given to other pods",
            do="leave it out; the pod's limits name its GPUs",
        )


def loaded_first(env: Environment, ground: Ground) -> Iterator[Finding]:
    """Another NCCL or CUDA than the one that torch was tested with."""
    for name in _LOADED_FIRST:
        if ground.on_gpu and env.get(name) is not None:
            yield env.finding(
                "library_path",
                Level.WARNING,
                name,
                "may load another NCCL or CUDA than the tested ones",
                why="torch brings its own; of two versions in one job the older one fails in the first collective",
                do="leave it out, or name only a plugin's folder; NCCL_DEBUG=VERSION prints what was loaded",
            )


CHECKS: Final[tuple[Check, ...]] = (unknown_name, group_by_hand, devices_by_hand, loaded_first)

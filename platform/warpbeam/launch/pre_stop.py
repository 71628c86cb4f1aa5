"""What a pod does when Kubernetes wants it gone: tell the run, and stay until the emergency save is done.

    python -m warpbeam.launch.pre_stop worker --grace-s 120
    python -m warpbeam.launch.pre_stop head --grace-s 120

A worker drains its Ray node: the driver sees that (notice.py), saves and moves on. A head asks the driver to stop, as
Ctrl-C does, and keeps GCS alive until it has. A preStop hook that fails ends a pod no later than one that is done, so
nothing here is an error.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import PurePath

import psutil

POLL_S = 0.5


def is_driver(command: Sequence[str]) -> bool:
    """Whether a process is `warpbeam run`, by its command line."""
    pairs = itertools.pairwise(command)
    return any(PurePath(program).name == "warpbeam" and verb == "run" for program, verb in pairs)


def is_rank(command: Sequence[str]) -> bool:
    """Whether a process is a rank of Ray Train, by the title that Ray gives it."""
    return bool(command) and command[0].startswith("ray::") and "TrainWorker" in command[0]


def wait_until_gone(
    there: Callable[[], bool],
    grace_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait while `there` says so; False where the grace ran out first."""
    deadline = now() + grace_s
    while there():
        if now() >= deadline:
            return False
        sleep(POLL_S)
    return True


def _processes(wanted: Callable[[Sequence[str]], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if wanted(process.info["cmdline"] or ()):
            found.append(process)
    return found


def stop_head(grace_s: float) -> bool:
    """Ask every driver here to stop with a checkpoint, and wait for it."""
    for process in _processes(is_driver):
        try:
            process.send_signal(signal.SIGTERM)
        except psutil.Error:
            continue
    return wait_until_gone(lambda: bool(_processes(is_driver)), grace_s)


def stop_worker(grace_s: float) -> bool:
    """Drain this node, and wait until its ranks have ended."""
    if not _processes(is_rank):
        return True
    drain_this_node(os.environ["RAY_ADDRESS"], grace_s)
    return wait_until_gone(lambda: bool(_processes(is_rank)), grace_s)


def drain_this_node(address: str, grace_s: float) -> bool:
    """Tell the cluster at `address` that this machine will be taken away; whether it has taken note."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without stubs
    from ray.core.generated import autoscaler_pb2
    from ray.util import get_node_ip_address

    client = GcsClient(address=address)
    own = get_node_ip_address()
    for node_id, node in client.get_all_node_info().items():
        if node.node_manager_address == own and node.state == 0:  # GcsNodeInfo.ALIVE
            accepted, _ = client.drain_node(
                node_id.hex(),
                autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
                "Kubernetes takes this pod away",
                int((time.time() + grace_s) * 1000),
            )
            return bool(accepted)
    return False


def main(arguments: list[str]) -> None:
    """Do what this pod's role asks."""
    parser = argparse.ArgumentParser(prog="warpbeam.launch.pre_stop")
    parser.add_argument("role", choices=["head", "worker"])
    parser.add_argument("--grace-s", type=float, required=True)
    asked = parser.parse_args(arguments)
    done = stop_head(asked.grace_s) if asked.role == "head" else stop_worker(asked.grace_s)
    print("the run has let go" if done else f"the grace of {asked.grace_s:g} s is spent")


if __name__ == "__main__":
    main(sys.argv[1:])

"""What must be done on each machine of a cluster after an attempt: bring home what killed ranks left on its disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpbeam.launch.local_logs import Names

TIMEOUT_S = 20.0


def ship_from_other_nodes(spec: Mapping[str, Any], names: Names) -> int:
    """Run `bring_home` on every other machine of the cluster; returns on how many it ended in time.

    Args:
        spec: the engine's RunSpec; it says where the store is and names the secrets, whose values are found there.
        names: team, run and attempt.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others:
        return 0
    task = ray.remote(num_cpus=0, max_retries=0)(_ship_here)
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in others]
    sent = [task.options(scheduling_strategy=place).remote(dict(spec), names) for place in places]
    done, _ = ray.wait(sent, num_returns=len(sent), timeout=TIMEOUT_S)
    return len(done)


def _ship_here(spec: dict[str, Any], names: Names) -> None:
    from warpbeam.job import parse_job
    from warpbeam.launch import secrets
    from warpbeam.launch.local_logs import bring_home
    from warpbeam.pool import parse_pool
    from warpbeam.storage import StorageConfig, open_store

    hidden = secrets.resolve(parse_job(spec["job"]), parse_pool(spec["pool"])).values()
    bring_home(open_store(StorageConfig.from_dict(spec["storage"])), names, hidden)

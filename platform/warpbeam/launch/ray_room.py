"""Why an attempt's ranks are not placed yet: what they need, what the cluster has, what is free.

Ray waits for a placement group without a word. The request itself stays with Ray (an autoscaler must see it); this only
reads Ray's own tables to say what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping


def waiting_for(need: Mapping[str, float]) -> str | None:
    """One sentence while a worker group of this size waits for its place, else None. `need`: of all ranks together."""
    import ray
    from ray.util import placement_group_table

    groups = placement_group_table().values()
    if not any(group["state"] in ("PENDING", "RESCHEDULING") for group in groups):
        return None
    return sentence(need, ray.cluster_resources(), ray.available_resources())


def sentence(need: Mapping[str, float], there: Mapping[str, float], free: Mapping[str, float]) -> str:
    """What is short, in words. Pure."""
    short = [
        f"{amount:g} {name} ({there.get(name, 0):g} in the cluster, {free.get(name, 0):g} free)"
        for name, amount in need.items()
        if free.get(name, 0) < amount
    ]
    return "waiting for " + (" and ".join(short) or "room on a single node")

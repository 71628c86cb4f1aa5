"""How many ranks an attempt of an elastic job gets: the largest of its legal sizes that the cluster has room for.

An attempt that waits for its place takes a smaller size as soon as one fits; one that trains asks for the next larger
size by a placement group of the ranks that it lacks. Such a request is what an autoscaler sees, it holds nothing until
all of it is there, and it goes with the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warpbeam.job import Job, Range
from warpbeam.plan.batch import legal_world_sizes
from warpbeam.pool import Pool


def legal_sizes(job: Job, pool: Pool) -> tuple[int, ...]:
    """The numbers of ranks that `accelerators: {min, max}` allows and that share the batch, ascending; none for a
    job that asks for one number."""
    asked = job.resources.accelerators
    if not isinstance(asked, Range):
        return ()
    limit = min(asked.max, pool.max_ranks)
    sizes = legal_world_sizes(job.train.global_batch, job.parallelism.micro_batch, limit)
    return tuple(size for size in sizes if size >= asked.min)


def size_for(sizes: Sequence[int], room: int) -> int:
    """The largest size that fits into the room; the smallest one where none does, which then waits."""
    return max((size for size in sizes if size <= room), default=sizes[0])


def room_for(need: Mapping[str, float], nodes: Iterable[Mapping[str, float]]) -> int:
    """How many ranks that each need so much fit onto nodes with so much free."""
    wanted = {name: amount for name, amount in need.items() if amount > 0}
    return sum(int(min(free.get(name, 0.0) / amount for name, amount in wanted.items()) + 1e-6) for free in nodes)


def free_room(need: Mapping[str, float]) -> int:
    """How many more ranks fit into the cluster now."""
    from ray._private.state import available_resources_per_node

    return room_for(need, available_resources_per_node().values())


class Growth:
    """A standing request for the ranks between this size and the next larger one; it ends with the attempt's group."""

    def __init__(self, sizes: Sequence[int], now: int, need: Mapping[str, float]) -> None:
        from ray.util import placement_group

        self.size = min(size for size in sizes if size > now)
        self._group: Any = placement_group([dict(need)] * (self.size - now), strategy="PACK")

    @property
    def there(self) -> bool:
        """Whether all of it is reserved."""
        return bool(self._group.wait(timeout_seconds=0.01))

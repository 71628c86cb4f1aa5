"""Ranks as actors of a Ray cluster: placed as a job's workers are, by the same resources, all of them or none."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from warpbeam.errors import UserError
from warpbeam.preflight.crew import Answered, Died, Event, Failed, Joined
from warpbeam.preflight.measured import Rank

LAST_WORDS: Final = 200
_INTRODUCTION: Final = 0
"""The order that every actor gets first; a conductor's begin with 1."""


class RayCrew:
    """Implements `Crew`. Ray is up already, and stays so.

    Args:
        resources: of one rank, as Ray counts them.
        node: only there; by Ray's name of it, its host's name, its address or its id.
        runtime_env: of the job's ranks.
    """

    def __init__(
        self,
        ranks: int,
        resources: Mapping[str, float],
        *,
        threads: int,
        node: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.size = ranks
        self._resources = dict(resources)
        self._threads, self._node = threads, node
        self._runtime_env = dict(runtime_env or {})
        self._group: Any = None
        self._actors: list[Any] = []
        self._waiting: dict[Any, tuple[int, int]] = {}
        self._events: deque[Event] = deque()
        self._placed: dict[int, str] = {}

    def start(self) -> None:
        """See Crew."""
        from ray.util import placement_group

        there = None
        if self._node is not None:
            there = [{"ray.io/node-id": str(find_node(self._node)["NodeID"])}] * self.size
        self._group = placement_group([self._resources] * self.size, strategy="PACK", bundle_label_selector=there)

    def send(self, rank: int, order: dict[str, Any]) -> None:
        """See Crew."""
        self._waiting[self._actors[rank].carry_out.remote(order)] = (rank, int(order["id"]))

    def next(self, timeout_s: float) -> Event | None:
        """See Crew."""
        import ray

        if not self._actors and not self._hire(timeout_s):
            return None
        if not self._events and self._waiting:
            done, _ = ray.wait(list(self._waiting), num_returns=1, timeout=timeout_s)
            if done:  # one call for all that is there: with thousands of ranks one by one takes seconds
                done, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
            for reference in done:
                self._hear(reference, *self._waiting.pop(reference))
        elif not self._events:
            time.sleep(timeout_s)
        return self._events.popleft() if self._events else None

    def state_of(self, rank: int) -> str:
        """See Crew: Ray's word on why a rank is not placed, or where it is."""
        from warpbeam.launch.ray_room import waiting_for

        if not self._actors:
            need = {name: amount * self.size for name, amount in self._resources.items()}
            return waiting_for(need) or "Ray has not placed it"
        where = self._placed.get(rank)
        return f"its actor is on {where}" if where else "its actor was placed, and has not said a word"

    def close(self) -> None:
        """See Crew. A rank that is stuck in native code is killed too."""
        import ray
        from ray.util import remove_placement_group

        for actor in self._actors:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.kill(actor, no_restart=True)
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)

    def _hire(self, timeout_s: float) -> bool:
        """Once there is room for all: an actor each."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if not self._group.wait(timeout_seconds=timeout_s):
            return False
        actor = ray.remote(_actor_class())
        for rank in range(self.size):
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            hired = actor.options(
                num_cpus=self._resources.get("CPU", 0),
                num_gpus=self._resources.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=place,
                runtime_env=self._runtime_env or None,
            ).remote(rank, self._threads)
            self._actors.append(hired)
            self._waiting[hired.introduction.remote()] = (rank, _INTRODUCTION)
        return True

    def _hear(self, reference: Any, rank: int, order: int) -> None:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            value = ray.get(reference)
        except RayActorError as error:
            self._events.append(Died(rank, _words(error)))
        except RayTaskError as error:
            self._events.append(Died(rank, _words(error)))
        else:
            if order == _INTRODUCTION:
                self._placed[rank] = value["node"]
                self._events.append(Joined(Rank(**value)))
            elif "error" in value:
                self._events.append(Failed(rank, order, value["error"]))
            else:
                self._events.append(Answered(rank, order, value["value"]))


def find_node(name: str) -> dict[str, Any]:
    """Ray's entry of a live node. Raises UserError where there is none, or several."""
    import ray

    keys = ("NodeName", "NodeManagerHostname", "NodeManagerAddress", "NodeID")
    alive = [node for node in ray.nodes() if node["Alive"]]
    found = [node for node in alive if name in (node[key] for key in keys)]
    if len(found) == 1:
        return dict(found[0])
    there = ", ".join(sorted({str(node["NodeName"]) for node in alive}))
    raise UserError(
        f"{'several nodes are' if found else 'no live node is'} called {name!r}",
        fix=f"the cluster has {there}; a node's address or id is understood too",
        reason="no_such_node",
    )


def _actor_class() -> type:
    """The actor, as a class of its own: a worker imports torch only when it makes one."""

    class PreflightRank:
        def __init__(self, rank: int, threads: int) -> None:
            import os

            import ray
            from ray.util import get_node_ip_address

            from warpbeam.preflight.rank import RankProbes

            os.environ["LOCAL_RANK"] = "0"  # Ray shows a worker its own accelerator only
            self._probes = RankProbes(rank, get_node_ip_address(), threads)
            here = ray.get_runtime_context().get_node_id()
            node = next(found for found in ray.nodes() if found["NodeID"] == here)
            self._node = str(node["NodeName"])

        def introduction(self) -> dict[str, Any]:
            return self._probes.introduction() | {"node": self._node}

        def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
            from warpbeam.preflight.rank import error_words

            try:
                return {"value": self._probes.carry_out(order)}
            except Exception as error:
                return {"error": error_words(error)}

    return PreflightRank


def _words(error: BaseException) -> str:
    """The last line that says something; Ray's errors begin with an essay."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:LAST_WORDS]

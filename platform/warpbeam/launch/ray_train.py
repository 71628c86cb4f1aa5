"""One attempt as a Ray Train worker group, and what its end means.

Ray Train places the workers and joins them into one process group; nothing else of it is used: no retries, no
checkpoint registry, a run name that no other attempt has (DESIGN §5.12).
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpbeam.errors import DiskFull, InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.launch.failure import Cause
from warpbeam.launch.rank import RankError, RankTask, before_joining, rank_main
from warpbeam.plan.plan import Plan
from warpbeam.pool import Pool

ABORT_S = 20.0

# How a rank's error reads when it is the echo of another rank's end, not a cause of its own.
_ECHOES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "timed out waiting",
    "nccl error",
    "remote process exited",
    "application timeout caused pair closure",
)


@dataclass(frozen=True)
class Ending:
    """Why an attempt ended early, in words.

    Args:
        error: what to raise when no retry follows and it is one of our own errors.
        facts: of the rank that caused it (traceback, frames of the user's files), where a rank spoke.
        fingerprint: equal for two endings of the same kind.
    """

    cause: Cause
    what: str
    fingerprint: str
    error: WarpbeamError | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class WorkerGroup:
    """Runs `rank_main` on every rank. `done` is set when all have ended; `ending` then says why, None if well.

    Args:
        runtime_env: Ray's word for what a worker's process needs (`spares.runtime_env`).
    """

    def __init__(self, plan: Plan, pool: Pool, task: RankTask, runtime_env: dict[str, Any], *, own_ray: bool) -> None:
        self._own_ray = own_ray
        self._runtime_env = runtime_env
        self._plan = plan
        self._pool = pool
        self._task = task
        self.done = threading.Event()
        self.ending: Ending | None = None
        self._thread = threading.Thread(target=self._run, name="worker-group", daemon=True)

    def start(self) -> None:
        """Ask for the workers; returns at once. Not the main thread's: Ray Train would take over Ctrl-C there."""
        self._thread.start()

    def abort(self) -> None:
        """End the workers at once. A thread that still asks Ray for them when Ray is shut down would take the whole
        process with it, without a word: so its controller is ended first, and the thread is waited for.
        """
        deadline = time.monotonic() + ABORT_S
        while not self.done.is_set() and time.monotonic() < deadline:
            _kill_controllers()
            self.done.wait(0.2)

    def _run(self) -> None:
        try:
            self._fit(Path(self._task.log_dir) / "ray-train")
        except BaseException as error:
            self.ending = explain(error)
        finally:
            with contextlib.suppress(Exception):  # Ray itself may be gone, and its groups with it
                _release_room()
            self.done.set()

    def _fit(self, storage: Path) -> None:
        from ray.train import FailureConfig, RunConfig, ScalingConfig

        on_cpu = self._pool.is_cpu
        trainer = _trainer_class(self._own_ray)(
            rank_main,
            train_loop_config=self._task.to_dict(),
            torch_config=_torch_config("gloo" if on_cpu else "nccl", self._task),
            scaling_config=ScalingConfig(
                num_workers=self._plan.world_size,
                use_gpu=not on_cpu,
                resources_per_worker=resources_per_rank(self._pool),
            ),
            run_config=RunConfig(
                name=f"{self._task.team}-{self._task.run}-{self._task.attempt}",
                storage_path=str(storage),
                worker_runtime_env=self._runtime_env,
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            ),
        )
        trainer.fit()


def _kill_controllers() -> None:
    """Kill this process's Ray Train controllers; with a controller its workers die. By Ray's own tables, because the
    handle is inside `fit` and the public listing needs a dashboard.
    """
    from ray._private import state, worker
    from ray._raylet import ActorID

    process = worker.global_worker
    for actor in state.actors(job_id=process.current_job_id).values():
        if actor["ActorClassName"].endswith("TrainController") and actor["State"] != "DEAD":
            process.core_worker.kill_actor(ActorID.from_hex(actor["ActorID"]), True)


def _release_room() -> None:
    """Remove the placement groups of this job. A controller that was killed leaves its own behind, and one that still
    waits takes the next room that becomes free, for nobody.
    """
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util import placement_group_table, remove_placement_group
    from ray.util.placement_group import PlacementGroup

    job_id = ray.get_runtime_context().get_job_id()
    for group_id, group in placement_group_table().items():
        if group_id.endswith(job_id) and group["state"] != "REMOVED":  # an id ends with its job's
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group_id)))


def import_ahead() -> None:
    """Import what starting a worker group takes; seconds, to be spent while Ray itself is starting. What fails here
    fails again, and is told, where it is needed: so does an import that the interpreter's own end cuts off.
    """
    with contextlib.suppress(Exception):
        import ray.train.torch  # noqa: F401


def _trainer_class(own_ray: bool) -> Any:
    """TorchTrainer that lets survivors save. Without helpers that would each cost a Python process and its imports
    before the first step: for data sets handed to the trainer (ours come by the indexed reader) and, on a Ray of our
    own, for placement groups that outlive their controller (that Ray ends with the driver).
    """
    from ray.train.torch import TorchTrainer

    from warpbeam.launch.ray_survivors import LetSurvivorsSave

    unneeded = {"DatasetsCallback"} | ({"PlacementGroupCleanerCallback"} if own_ray else set())

    class LeanTorchTrainer(TorchTrainer):  # type: ignore[misc]
        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            needed = [callback for callback in callbacks if type(callback).__name__ not in unneeded]
            return [*needed, LetSurvivorsSave()]

    return LeanTorchTrainer


def _torch_config(backend: str, task: RankTask) -> Any:
    """TorchConfig whose workers do something before their process group is made."""
    from ray.train.torch import TorchConfig

    class Prepared(TorchConfig(backend=backend).backend_cls):  # type: ignore[misc]
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(_prepare_worker, task.to_dict(), backend == "nccl")
            super().on_start(worker_group, backend_config)

    class PreparedConfig(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> Any:
            return Prepared

    return PreparedConfig(backend=backend)


def _prepare_worker(task: dict[str, Any], nccl: bool) -> None:
    import ray.train

    before_joining(task, ray.train.get_context().get_world_rank(), nccl=nccl)


def resources_per_rank(pool: Pool) -> dict[str, float]:
    """What Ray reserves for one rank."""
    return {"CPU": pool.cpus_per_worker} | ({} if pool.is_cpu else {"GPU": 1.0})


def explain(error: BaseException) -> Ending:
    """Which rank, and what kind of failure, is behind an error of Ray Train's."""
    from ray.train import ControllerError, PreemptionError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        return _from_ranks(error.worker_failures)
    if isinstance(error, ControllerError):
        return _from_controller(error.controller_failure)
    if isinstance(error, PreemptionError):
        return Ending(Cause.NODE_LOST, "a machine was taken away (preemption)", "preempted")
    ours = find_ours(error)
    if ours is not None:
        return _from_ours(ours, {})
    return Ending(Cause.UNKNOWN, _line(error), type(error).__name__)


def find_ours(error: BaseException | None) -> WarpbeamError | None:
    """One of our errors inside what Ray wraps around it (a task's error, a chain of causes)."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, WarpbeamError):
            return error
        inner = getattr(error, "cause", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return None


def _from_ranks(failures: dict[int, Exception]) -> Ending:
    """The first cause among the ranks' failures: a death before an error, an error before the echoes of either."""
    for rank, failure in sorted(failures.items()):
        if (death := _death(failure)) is not None:
            cause, text = death
            return Ending(cause, f"rank {rank} {text}", f"{cause}:{rank}", facts={"rank": rank})
    spoken = [failure for failure in failures.values() if isinstance(failure, RankError)]
    if not spoken:
        rank, failure = next(iter(sorted(failures.items())))
        return Ending(Cause.UNKNOWN, f"rank {rank}: {_line(failure)}", type(failure).__name__, facts={"rank": rank})
    first = min(spoken, key=lambda failure: (_is_echo(failure), failure.facts["at"]))
    if first.error is not None:
        return _from_ours(first.error, first.facts)
    if _is_echo(first):
        rank = first.facts["rank"]
        return Ending(Cause.WORKER_DIED, f"rank {rank} lost the connection to another rank", "echo", facts=first.facts)
    fingerprint = f"{first.facts['type']}:{first.facts['message'][:200]}"
    return Ending(Cause.USER_CODE, str(first), fingerprint, facts=first.facts)


def _from_ours(error: WarpbeamError, facts: dict[str, Any]) -> Ending:
    if error.reason == "fenced":
        cause = Cause.FENCED
    elif isinstance(error, DiskFull):
        cause = Cause.DISK_FULL
    elif isinstance(error, UserError):
        cause = Cause.BAD_INPUT
    elif isinstance(error, PlatformError):
        cause = Cause.PLATFORM
    elif isinstance(error, InfraError):
        cause = Cause.INFRA
    else:
        cause = Cause.USER_CODE if error.exit_code == 1 else Cause.UNKNOWN
    return Ending(cause, error.what, error.reason, error, facts)


def _from_controller(error: Exception) -> Ending:
    from ray.train.v2._internal.exceptions import (
        InsufficientClusterResourcesError,
        WorkerGroupStartupFailedError,
        WorkerGroupStartupTimeoutError,
    )

    if isinstance(error, WorkerGroupStartupTimeoutError | InsufficientClusterResourcesError):
        return Ending(Cause.NO_RESOURCES, "the accelerators did not become free in time", "no_resources")
    if isinstance(error, WorkerGroupStartupFailedError):
        return Ending(Cause.WORKER_DIED, f"the workers could not be started: {_line(error)}", "startup")
    return Ending(Cause.UNKNOWN, _line(error), type(error).__name__)


def _death(failure: BaseException) -> tuple[Cause, str] | None:
    """Cause and words when a process or machine ended without an exception; None when it spoke."""
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError

    failure = getattr(failure, "health_check_failure", failure)
    text = str(failure)
    if isinstance(failure, OutOfMemoryError) or "memory monitor" in text.lower():
        return Cause.WORKER_DIED, "was ended by Ray: the machine ran out of memory"
    if isinstance(failure, NodeDiedError) or "node died" in text.lower() or "node has died" in text.lower():
        return Cause.NODE_LOST, "was lost with its machine"
    if isinstance(failure, RayActorError):
        return Cause.WORKER_DIED, "died without a word: killed (as when memory runs out) or crashed in native code"
    return None


def _is_echo(failure: RankError) -> bool:
    text = f"{failure.facts['type']}: {failure.facts['message']}".lower()
    return any(echo in text for echo in _ECHOES)


def _line(error: BaseException) -> str:
    """The first line; where that announces another (`due to error:`), the last one with it. Of a Ray task the last one:
    its text is a name, a traceback, and at the end what was raised."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    if len(lines) > 1 and "ray::" in lines[0]:
        return lines[-1].strip()[:300]
    more = f" {lines[-1].strip()}" if lines[0].endswith(":") and lines[1:] else ""
    return f"{lines[0][:300]}{more[:300]}"

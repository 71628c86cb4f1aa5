"""What Ray's errors mean: built from Ray's own exception classes, no cluster."""

from __future__ import annotations

import pickle

from ray.exceptions import ActorDiedError, NodeDiedError, RayTaskError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError

from warpbeam.errors import DiskFull, InfraError, UserError
from warpbeam.launch.failure import Cause
from warpbeam.launch.rank import RankError
from warpbeam.launch.ray_train import explain, find_ours


def spoke(rank: int, at: float, message: str, kind: str = "ValueError", error: object = None) -> RankError:
    facts = {"rank": rank, "at": at, "type": kind, "message": message, "traceback": "", "frames": []}
    return RankError(facts, error)  # type: ignore[arg-type]


def group(**failures: Exception) -> WorkerGroupError:
    return WorkerGroupError("failed", {int(name[1:]): failure for name, failure in failures.items()})


def test_a_rank_error_pickles() -> None:
    error = pickle.loads(pickle.dumps(spoke(1, 2.0, "boom", error=UserError("bad", fix="mend it"))))
    assert error.facts["rank"] == 1
    assert error.error.fix == "mend it"


def test_the_first_error_is_the_cause_not_its_echo() -> None:
    echo = spoke(0, 1.0, "[gloo] Connection closed by peer [127.0.0.1]:1", "RuntimeError")
    ending = explain(group(r0=echo, r1=spoke(1, 2.0, "boom")))
    assert ending.cause is Cause.USER_CODE
    assert ending.facts["rank"] == 1
    assert "boom" in ending.what


def test_a_death_is_the_cause_of_the_echoes() -> None:
    died = WorkerHealthCheckFailedError("health", ActorDiedError())
    ending = explain(group(r0=spoke(0, 1.0, "Connection reset by peer", "RuntimeError"), r1=died))
    assert ending.cause is Cause.WORKER_DIED
    assert "rank 1 died" in ending.what


def test_only_echoes_mean_that_somebody_died() -> None:
    ending = explain(group(r0=spoke(0, 1.0, "Connection closed by peer", "RuntimeError")))
    assert ending.cause is Cause.WORKER_DIED


def test_a_lost_node() -> None:
    assert explain(group(r0=NodeDiedError("The node died"))).cause is Cause.NODE_LOST


def test_our_own_errors_keep_their_class() -> None:
    ours = UserError("line 3 of x.jsonl is broken", fix="mend it")
    ending = explain(group(r1=spoke(1, 1.0, "x", error=ours)))
    assert ending.cause is Cause.BAD_INPUT
    assert ending.error is ours
    assert explain(group(r0=spoke(0, 1.0, "x", error=InfraError("store away")))).cause is Cause.INFRA
    assert explain(group(r0=spoke(0, 1.0, "x", error=DiskFull("disk full: /d")))).cause is Cause.DISK_FULL


def test_an_error_that_announces_another_is_told_with_it() -> None:
    ending = explain(RuntimeError("a worker failed to initialize due to error:\n  trace\nImportError: no pyarrow\n"))
    assert ending.what == "RuntimeError: a worker failed to initialize due to error: ImportError: no pyarrow"
    assert explain(RuntimeError("one\ntwo")).what == "RuntimeError: one"


def test_no_room_in_time() -> None:
    assert explain(ControllerError(WorkerGroupStartupTimeoutError(2))).cause is Cause.NO_RESOURCES


def test_ours_is_found_inside_rays_wrapping() -> None:
    ours = UserError("bad")
    assert find_ours(RayTaskError("f", "trace", ours)) is ours
    outer = RuntimeError("outer")
    outer.__cause__ = ours
    assert find_ours(outer) is ours
    assert find_ours(RuntimeError("other")) is None


def test_what_was_raised_in_a_task_is_told_without_rays_frame() -> None:
    """As where gloo finds no interface while the process group is made."""
    raised = RuntimeError("Unable to find address for: eth77")
    trace = "ray::execute() (pid=1)\n  File x\nRuntimeError: Unable to find address for: eth77\n"
    task_error = RayTaskError("execute", trace, raised, pid=1, ip="192.0.2.2")
    ending = explain(task_error.as_instanceof_cause())
    assert (ending.cause, ending.what) == (Cause.UNKNOWN, "RuntimeError: Unable to find address for: eth77")

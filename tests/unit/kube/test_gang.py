"""Each scheduler's marks, and what it cannot hold together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.orders import job, order, pool
from warpbeam.errors import PlatformError
from warpbeam.kube.gang import gang_of
from warpbeam.kube.order import Kind, Order


def made(kind: Kind = Kind.RAYJOB, *, elastic: bool = False, **kubernetes: Any) -> Order:
    of = job(resources={"accelerators": {"min": 8, "max": 16} if elastic else 16})
    return order(kind, on=pool(kubernetes), of=of)


def test_kueue_lets_in_what_is_suspended() -> None:
    gang = gang_of(made(gang="kueue", queue="training", queue_priority="high"))
    assert gang.suspend
    assert gang.labels == {"kueue.x-k8s.io/queue-name": "training", "kueue.x-k8s.io/priority-class": "high"}
    assert gang.annotations == {}


def test_a_teams_own_queue_wins() -> None:
    gang = gang_of(made(gang="kueue", queue="training", teams={"red": {"namespace": "team-red", "queue": "red"}}))
    assert gang.labels == {"kueue.x-k8s.io/queue-name": "red"}


def test_an_elastic_job_in_a_queue_is_marked() -> None:
    gate = {"gang": "kueue", "queue": "q", "elastic_jobs_gate": True}
    assert gang_of(made(elastic=True, **gate)).annotations == {"kueue.x-k8s.io/elastic-job": "true"}
    assert gang_of(made(**gate)).annotations == {}


def test_batch_schedulers() -> None:
    volcano = gang_of(made(gang="volcano", queue="q", priority_class="training"))
    assert volcano.labels == {"volcano.sh/queue-name": "q", "ray.io/priority-class-name": "training"}
    assert not volcano.suspend
    yunikorn = gang_of(made(gang="yunikorn", queue="root.q"))
    assert yunikorn.labels == {
        "ray.io/gang-scheduling-enabled": "true",
        "yunikorn.apache.org/app-id": "tiny",
        "yunikorn.apache.org/queue": "root.q",
    }
    assert gang_of(made(Kind.RAYCLUSTER, gang="scheduler-plugins")).labels == {"ray.io/gang-scheduling-enabled": "true"}


def test_the_own_gate_is_a_suspended_job() -> None:
    assert gang_of(made()).suspend
    assert gang_of(made()).labels == {}


@pytest.mark.parametrize(
    ("kind", "kubernetes", "wrong"),
    [
        (Kind.RAYJOB, {"gang": "scheduler-plugins"}, "scheduler-plugins cannot hold a RayJob together"),
        (
            Kind.RAYCRONJOB,
            {"gang": "volcano", "queue": "q"},
            "volcano cannot hold the RayJobs of a RayCronJob together",
        ),
        (Kind.RAYCRONJOB, {"gang": "yunikorn", "queue": "q"}, "gives them no labels"),
        (Kind.RAYCRONJOB, {"gang": "kueue", "queue": "q"}, "would not reach queue `q`"),
    ],
)
def test_what_could_start_in_half_or_never_is_refused(kind: Kind, kubernetes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(PlatformError) as caught:
        gang_of(made(kind, **kubernetes))
    assert wrong in str(caught.value)
    assert caught.value.fix


def test_a_schedule_goes_through_kueues_default_queue() -> None:
    assert gang_of(made(Kind.RAYCRONJOB, gang="kueue", queue="default")).suspend

"""What a plan chose stays chosen while its run goes on at the same size."""

from __future__ import annotations

from tests.unit.plan.jobs import job, pool
from warpbeam.launch.same_plan import as_chosen
from warpbeam.plan.plan import make_plan

GPUS = pool("H100-SXM", memory_gib=80, nodes=1, per_node=8)


def test_open_keys_are_filled_in() -> None:
    plan = make_plan(job(), GPUS, world_size=2).to_dict() | {"strategy": "zero1", "micro_batch": 2}
    kept = as_chosen(job(), plan, 2)
    again = make_plan(kept, GPUS, world_size=2)
    assert (again.strategy, again.micro_batch, again.activation_checkpointing) == ("zero1", 2, False)
    assert again.why == "as the job says"


def test_what_the_job_states_now_wins() -> None:
    plan = make_plan(job(), GPUS, world_size=2).to_dict()
    stated = job(parallelism__strategy="zero2", parallelism__micro_batch=4)
    kept = as_chosen(stated, plan, 2)
    assert (kept.parallelism.strategy, kept.parallelism.micro_batch) == ("zero2", 4)


def test_another_size_is_planned_anew() -> None:
    plan = make_plan(job(), GPUS, world_size=2).to_dict()
    asked = job()
    assert as_chosen(asked, plan, 4) is asked


def test_nothing_open_is_nothing_to_do() -> None:
    stated = job(
        parallelism={"strategy": "zero3", "offload": "none", "micro_batch": 4}, train__activation_checkpointing=False
    )
    assert as_chosen(stated, make_plan(stated, GPUS, world_size=2).to_dict(), 2) is stated


def test_a_record_of_an_older_version() -> None:
    plan = make_plan(job(), GPUS, world_size=2).to_dict()
    del plan["activation_checkpointing"]
    assert as_chosen(job(), plan, 2).train.activation_checkpointing is False

from __future__ import annotations

import pytest

from tests.unit.launch.jobs import job
from warpbeam.errors import UserError
from warpbeam.launch.same_name import Begin, Finished, GoOn, decide, describe, next_name
from warpbeam.plan.compare import Change, compare_jobs
from warpbeam.record.states import RunState

LR = compare_jobs(job(), job(train=job().to_dict()["train"] | {"lr": 2e-3}))
SEED = compare_jobs(job(), job(train=job().to_dict()["train"] | {"seed": 5}))
RANKS = compare_jobs(job(), job(resources={"accelerators": 1}))


def test_a_new_name_begins() -> None:
    assert decide("tiny", None, []) == Begin()


def test_finished_and_unchanged_is_nothing_to_do() -> None:
    assert decide("tiny", RunState.DONE, []) == Finished()


@pytest.mark.parametrize("changes", [LR, SEED, RANKS])
def test_finished_and_changed_is_refused_with_the_differences(changes: list) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError, match="finished") as caught:
        decide("tiny", RunState.DONE, changes, allowed=[change.key for change in changes])
    assert changes[0].key in caught.value.why
    assert "--fresh" in caught.value.fix


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED, RunState.INTERRUPTED])
def test_unfinished_and_unchanged_goes_on(state: RunState) -> None:
    assert decide("tiny", state, []) == GoOn(())


def test_a_harmless_change_goes_on_and_is_told() -> None:
    assert decide("tiny", RunState.STOPPED, RANKS) == GoOn(tuple(RANKS))


def test_a_change_that_needs_consent() -> None:
    with pytest.raises(UserError) as caught:
        decide("tiny", RunState.STOPPED, LR)
    assert "--allow train.lr" in caught.value.fix
    assert "0.001 -> 0.002" in caught.value.why
    assert decide("tiny", RunState.STOPPED, LR, ["train.lr"]) == GoOn(tuple(LR))


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED, RunState.INTERRUPTED])
def test_a_run_that_kept_nothing_begins_anew_with_a_mended_job(state: RunState) -> None:
    """The error told the user to change the data: the same command must then not be refused."""
    assert decide("tiny", state, [*SEED, *LR], kept=False) == Begin()
    assert decide("tiny", state, [], kept=False) == GoOn(())


def test_differences_are_told_down_to_the_key_that_differs() -> None:
    old, new = ({"a": 1, "size": {"h": hidden, "n": 2}} for hidden in (64, 128))
    model = Change("model.config", old, new, "impossible")
    data = Change("data.train", [{"path": "a", "weight": None}], [{"path": "b", "weight": 1.0}], "impossible")
    more = Change("data.eval", [], [{"path": "c"}], "harmless")
    assert describe([model, data, more]) == [
        "model.config.size.h: 64 -> 128",
        "data.train[0].path: a -> b",
        "data.train[0].weight: nothing -> 1.0",
        "data.eval: [] -> [{'path': 'c'}]",
    ]


def test_what_would_be_another_experiment_is_never_allowed() -> None:
    with pytest.raises(UserError, match="another experiment"):
        decide("tiny", RunState.STOPPED, SEED, ["train.seed"])


def test_fresh_names() -> None:
    assert next_name("sft", []) == "sft"
    assert next_name("sft", ["sft", "sft-2", "sft-4"]) == "sft-3"

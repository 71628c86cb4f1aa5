"""Choosing equals looking at everything, and looks at less."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.planner_search import question as benchmark_question
from tests.unit.plan.setups import LLAMA_8B, question, recipe, setup
from warpbeam.plan.forecast import quick_memory, quick_seconds
from warpbeam.plan.layouts import Space, any_engine, families
from warpbeam.plan.search import SAME, Candidate, choose, ranked
from warpbeam.plan.setup import Setup


def group(sizes: list[int]) -> list[Setup]:
    return [setup(recipe_=recipe(micro_batch=size)) for size in sizes]


@given(
    limits=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    times=st.lists(st.floats(0.1, 100), min_size=8, max_size=8),
)
def test_the_border_of_what_fits_is_found(limits: list[int], times: list[float]) -> None:
    """Each group has micro-batches 1..8 and a limit; the largest that fits is among those that are timed."""
    kinds = ["zero1", "zero2", "zero3", "ddp", "fsdp", "hsdp", "distributed_optimizer", "zero1"]
    groups = [
        [setup(sharding=kind, offload="cpu" if i == 7 else "none", recipe_=recipe(micro_batch=m)) for m in range(1, 9)]
        for i, kind in zip(range(len(limits)), kinds, strict=False)
    ]
    limit = {id(member): top for members, top in zip(groups, limits, strict=True) for member in members}
    timed: list[tuple[int, int]] = []

    def seconds(member: Setup) -> float:
        timed.append((id(member), member.recipe.micro_batch))
        return times[member.recipe.micro_batch - 1]

    found = choose(
        groups, memory=lambda s: (float(s.recipe.micro_batch), s.recipe.micro_batch <= limit[id(s)]), seconds=seconds
    )
    assert found.considered == 8 * len(groups)
    assert len(found.ranked) == sum(top > 0 for top in limits)
    assert all(size <= limit[key] for key, size in timed), "nothing that does not fit is timed"
    for members, top in zip(groups, limits, strict=True):
        if top > 0:
            assert (id(members[min(top, 8) - 1]), min(top, 8)) in timed
    assert (found.nearest is None) == bool(found.ranked)


def test_the_best_is_the_best_of_all() -> None:
    asked = question(space=any_engine(32), seq_len=8192, global_batch=128)
    machine = asked.machine
    everything = [
        member
        for members in families(LLAMA_8B, 16, 8, 8, asked.recipe, asked.space)
        for member in members
        if quick_memory(member, machine)[1]
    ]
    fastest = min(quick_seconds(member, machine) for member in everything)
    found = asked.search()
    assert found.best is not None
    assert found.best.step_s <= fastest * (1 + SAME)


def test_a_tie_goes_to_what_needs_less_memory() -> None:
    one, two, three = group([1, 2, 4])
    order = ranked([Candidate(one, 1.0, 70), Candidate(two, 1.01, 40), Candidate(three, 1.2, 10)])
    assert [candidate.setup for candidate in order] == [two, one, three]
    assert ranked([]) == []


def test_nothing_fits() -> None:
    found = question("1xL4").search(Space(shardings=("ddp", "zero3")))
    assert found.best is None
    assert found.nearest is not None


def test_ten_thousand_configurations_take_less_than_a_second_of_one_core() -> None:
    asked = benchmark_question()
    began = time.process_time()
    found = asked.search()
    assert found.considered >= 10_000
    assert (time.process_time() - began) * 10_000 / found.considered < 1.0


def test_offloaded_states_lead_only_where_nothing_else_is_left() -> None:
    kept = Candidate(setup(sharding="zero2"), step_s=2.0, memory_gib=70.0)
    offloaded = Candidate(setup(sharding="zero2", offload="cpu"), step_s=1.0, memory_gib=20.0)
    assert ranked([offloaded, kept])[0] is kept
    assert ranked([offloaded])[0] is offloaded


def test_while_it_gets_faster_the_search_goes_on() -> None:
    """A long pipeline with few micro-batches: the time falls from the largest that fits to the smallest of many."""
    members = [setup(recipe_=recipe(micro_batch=size)) for size in range(1, 31)]
    found = choose([members], memory=lambda s: (1.0, True), seconds=lambda s: 10.0 * s.recipe.micro_batch)
    assert found.best is not None
    assert found.best.step_s == 10.0
    largest = choose([members], memory=lambda s: (1.0, True), seconds=lambda s: 1.0, look_back=1)
    assert largest.best is not None
    assert largest.best.setup.recipe.micro_batch == 30


def test_the_tolerance_holds_for_all_kinds_together() -> None:
    """Of one kind the slower with less memory, of another one as much slower again: still within 2% of the fastest."""
    one = [setup(sharding="zero1", recipe_=recipe(micro_batch=size)) for size in (1, 2)]
    other = [setup(sharding="zero3", recipe_=recipe(micro_batch=1))]
    times = {id(one[1]): 100.0, id(one[0]): 101.9, id(other[0]): 103.8}
    needed = {id(one[1]): 70.0, id(one[0]): 60.0, id(other[0]): 10.0}
    found = choose([one, other], memory=lambda s: (needed[id(s)], True), seconds=lambda s: times[id(s)])
    assert [candidate.setup for candidate in found.ranked] == [one[0], other[0]]

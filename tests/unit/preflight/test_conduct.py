"""Who is asked what, and until when: a crew that is a script, on a clock that only moves when somebody waits."""

from __future__ import annotations

import pytest

from tests.unit.preflight.made_up import ranks_on
from tests.unit.preflight.scripted_crew import Clock, Order, Reply, ScriptedCrew, healthy_reply
from warpbeam.preflight.ask import Ask
from warpbeam.preflight.busbw import Op
from warpbeam.preflight.conduct import GRACE_S, Conductor
from warpbeam.preflight.crew import Event, Failed
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.judge import judge
from warpbeam.preflight.measured import How, Measured
from warpbeam.preflight.phases.burn import turns
from warpbeam.preflight.phases.collective import scopes

ASK = Ask(join_s=60.0, answer_s=30.0, link_s=10.0, disk="/scratch")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def conducted(crew: ScriptedCrew, ask: Ask = ASK) -> Measured:
    return Conductor(crew, ask, now=crew.clock, wall=crew.clock).run()


def named(measured: Measured) -> list[str]:
    return [suspect.where for suspect in judge(measured, Expected()).suspects]


def test_a_healthy_crew_is_measured_whole_and_passes(clock: Clock) -> None:
    crew = ScriptedCrew(clock)
    measured = conducted(crew)
    assert judge(measured, Expected()).passed
    assert crew.closed
    assert len(measured.links) == 6
    assert {(one.op, one.scope) for one in measured.collectives} == {(op, s) for op in Op for s in ("inside", "all")}
    assert max(one.size_bytes for one in measured.collectives) == 1 << 30
    assert sorted(rank for rank, _ in crew.asked("storage")) == [0, 2], "one rank of each machine"
    assert [skip.what for skip in measured.skipped] == []


def test_a_rank_that_never_joins_is_named_at_the_deadline_and_nobody_else(clock: Clock) -> None:
    crew = ScriptedCrew(clock, absent=(2,))
    measured = conducted(crew)
    (lost,) = measured.lost
    assert (lost.rank, lost.how, lost.after_s) == (2, How.NEVER_JOINED, 60.0)
    assert (named(measured), crew.closed, crew.heard) == (["rank 2"], True, [])


@pytest.mark.parametrize("probe", ["facts", "storage", "burn", "open", "reach", "link", "join", "collective"])
def test_a_rank_that_dies_is_named_in_any_phase(clock: Clock, probe: str) -> None:
    crew = ScriptedCrew(clock)
    crew.dies[probe] = 2
    measured = conducted(crew)
    assert [(lost.rank, lost.how) for lost in measured.lost] == [(2, How.DIED)]
    assert (named(measured), crew.closed) == (["rank 2"], True)


@pytest.mark.parametrize("probe", ["facts", "storage", "burn", "open", "reach", "link", "join", "collective"])
def test_a_rank_that_hangs_is_named_within_the_deadline(clock: Clock, probe: str) -> None:
    def replies(rank: int, order: Order) -> Reply:
        if order["probe"] != probe or rank not in order.get("ranks", [2, rank]):
            return healthy_reply(rank, order)
        if rank == 2:
            return None
        together = probe in ("join", "collective") or (probe == "link" and 2 in order["ranks"])
        return "RuntimeError: timed out" if together else healthy_reply(rank, order)

    crew = ScriptedCrew(clock, replies=replies)
    began = clock.at
    measured = conducted(crew)
    assert [(lost.rank, lost.how) for lost in measured.lost] == [(2, How.HANGS)]
    assert measured.lost[0].what == "process 1002 is stopped"
    assert named(measured) == ["rank 2"]
    assert crew.closed
    assert clock.at - began <= 120.0 + GRACE_S


def test_who_only_waits_for_another_gets_the_time_to_say_so(clock: Clock) -> None:
    """A busy machine: the partner of a rank that stands still needs longer than its own deadline."""

    class SlowPartner(ScriptedCrew):
        def next(self, timeout_s: float) -> Event | None:
            told = [order for rank, order in self.asked("link") if rank == 2 and 1 in order["ranks"]]
            if told and self.clock.at > self.began + 30.0 and not self.spoke:
                self.spoke = True
                return Failed(2, told[0]["id"], "RuntimeError: timed out")
            return super().next(timeout_s)

    def replies(rank: int, order: Order) -> Reply:
        if order["probe"] == "link" and {1, 2} == set(order["ranks"]):
            return None
        return healthy_reply(rank, order)

    crew = SlowPartner(clock, ranks_on(1, 4), replies=replies)
    crew.began, crew.spoke = clock.at, False
    measured = conducted(crew)
    assert [(lost.rank, lost.how) for lost in measured.lost] == [(1, How.HANGS)]
    assert named(measured) == ["rank 1"]


def test_what_others_say_after_a_death_is_a_consequence(clock: Clock) -> None:
    def replies(rank: int, order: Order) -> Reply:
        if order["probe"] == "collective" and rank != 1:
            return "RuntimeError: connection closed by peer"
        return healthy_reply(rank, order)

    crew = ScriptedCrew(clock, replies=replies)
    crew.dies["collective"] = 1
    measured = conducted(crew)
    assert len(measured.errors) == 3
    assert named(measured) == ["rank 1"]


def test_a_dead_link_is_tried_twice_named_and_no_collective_waits_for_it(clock: Clock) -> None:
    def replies(rank: int, order: Order) -> Reply:
        return "timed out" if order["probe"] == "link" and order["ranks"] == [1, 2] else healthy_reply(rank, order)

    crew = ScriptedCrew(clock, replies=replies)
    measured = conducted(crew)
    assert named(measured) == ["ranks 1 and 2"]
    assert len([order for rank, order in crew.asked("link") if order["ranks"] == [1, 2] and rank == 1]) == 2
    assert crew.asked("collective") == []
    assert ("collectives", True) in [(skip.what, "dead" in skip.why) for skip in measured.skipped]


def test_all_of_the_time_goes_into_whose_fault_it_is_once_a_link_is_dead(clock: Clock) -> None:
    """Half of a schedule would blame a pair for what is a node's fault."""

    def replies(rank: int, order: Order) -> Reply:
        if order["probe"] == "link":
            clock.at += 2.0
            return "timed out" if 3 in order["ranks"] else healthy_reply(rank, order)
        return healthy_reply(rank, order)

    measured = conducted(ScriptedCrew(clock, ranks_on(4, 1), replies=replies), Ask(budget_s=40.0))
    assert (named(measured), len(measured.links)) == (["node gpu-3"], 6)


def test_a_link_that_was_only_slow_once_is_nobodys_fault(clock: Clock) -> None:
    tried: list[int] = []

    def replies(rank: int, order: Order) -> Reply:
        if order["probe"] == "link" and order["ranks"] == [0, 1]:
            tried.append(rank)
            ways = [1e7, 1e9] if len(tried) <= 2 else [1e9, 1e9]
            return {"latency_s": 1e-5, "ways": ways, "right": True}
        return healthy_reply(rank, order)

    measured = conducted(ScriptedCrew(clock, ranks_on(1, 4), replies=replies))
    assert (named(measured), len(tried)) == ([], 4)


def test_a_rank_that_was_only_slow_once_is_nobodys_fault(clock: Clock) -> None:
    burnt: list[int] = []

    def replies(rank: int, order: Order) -> Reply:
        value = healthy_reply(rank, order)
        if order["probe"] == "burn" and rank == 3:
            burnt.append(rank)
            return value | {"flops": 1e11} if len(burnt) == 1 else value
        return value

    measured = conducted(ScriptedCrew(clock, replies=replies))
    assert (named(measured), len(burnt)) == ([], 2)


def test_data_that_arrives_changed_is_a_dead_link(clock: Clock) -> None:
    def replies(rank: int, order: Order) -> Reply:
        value = healthy_reply(rank, order)
        return value | {"right": False} if order["probe"] == "link" and order["ranks"] == [0, 3] else value

    assert named(conducted(ScriptedCrew(clock, replies=replies))) == ["ranks 0 and 3"]


def test_sizes_stop_at_a_quarter_of_free_memory_and_it_is_said(clock: Clock) -> None:
    def replies(rank: int, order: Order) -> Reply:
        value = healthy_reply(rank, order)
        return value | {"free_bytes": 1 << 30} if order["probe"] == "facts" else value

    measured = conducted(ScriptedCrew(clock, ranks_on(1, 4), replies=replies))
    assert max(one.size_bytes for one in measured.collectives if one.op is Op.ALL_REDUCE) == 16 << 20
    said = {skip.what: skip.why for skip in measured.skipped}
    assert said["all-reduce, all ranks"] == "stops before 128 MiB: all ranks' buffers would pass 25% of free memory"


def test_sizes_stop_when_the_time_is_up_and_it_is_said(clock: Clock) -> None:
    def replies(rank: int, order: Order) -> Reply:
        value = healthy_reply(rank, order)
        if order["probe"] != "collective":
            return value
        seconds = order["size_bytes"] / 1e7
        clock.at += seconds * (order["repeats"] + 1) / 4  # four ranks work at the same time
        return value | {"seconds": seconds}

    crew = ScriptedCrew(clock, ranks_on(1, 4), replies=replies)
    began = clock.at
    measured = conducted(crew, Ask(budget_s=60.0))
    assert clock.at - began < 75.0
    assert {one.op for one in measured.collectives} == set(Op), "each operation gets its part of the time"
    assert any("no time for" in skip.why for skip in measured.skipped)
    assert judge(measured, Expected()).passed


def test_one_rank_alone_has_no_links(clock: Clock) -> None:
    measured = conducted(ScriptedCrew(clock, ranks_on(1, 1)))
    assert ([skip.what for skip in measured.skipped], named(measured)) == (["links", "collectives"], [])


def test_ranks_that_share_cores_burn_in_turns_and_accelerators_all_at_once() -> None:
    ranks = ranks_on(2, 4)
    shared = turns(ranks, {rank.rank: 2 for rank in ranks})
    assert [[rank.rank for rank in turn] for turn in shared] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert len(turns(ranks_on(2, 4, "H100"), {})) == 1


def test_collectives_inside_nodes_want_nodes_of_one_size() -> None:
    assert [scope.name for scope in scopes({"a": [0, 1], "b": [2, 3]}, quick=False)] == ["inside", "all"]
    for nodes in ({"a": [0, 1], "b": [2]}, {"a": [0], "b": [1]}, {"a": [0, 1]}):
        assert [scope.name for scope in scopes(nodes, quick=False)] == ["all"]
    assert [scope.name for scope in scopes({"a": [0, 1], "b": [2, 3]}, quick=True)] == ["all"]

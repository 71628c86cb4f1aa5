"""The first cause, not the loudest line."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.doctor.diagnose import Answer, diagnose_texts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.order import HIGH, order
from warpbeam.doctor.rule import Finding

WATCHDOG = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8"


def finding(kind: Kind, confidence: float, at_s: float | None = None) -> Finding:
    return Finding(
        rule=f"rule_of_{kind}",
        kind=kind,
        owner="ml",
        cause="",
        where="job",
        do="",
        retry="useless",
        confidence=confidence,
        evidence=(),
        at_s=at_s,
    )


def kind_of(answer: Answer) -> Kind | None:
    return answer.first.kind if answer.first else None


def test_one_exception_beats_sixty_three_timeouts() -> None:
    timeouts = [(f"rank {rank} log", WATCHDOG.format(rank)) for rank in range(63)]
    raised = ("rank 63 log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    answer = diagnose_texts([*timeouts, raised])
    assert kind_of(answer) == Kind.GPU_OOM_ONE_RANK
    assert answer.first is not None
    assert answer.first.where == "rank 63"
    assert "63 ranks: watchdog timeouts" in answer.not_it


def test_the_silent_rank_is_the_suspect_in_a_timeout() -> None:
    timeouts = [(f"rank {rank} log", WATCHDOG.format(rank)) for rank in range(7)]
    answer = diagnose_texts([*timeouts, ("rank 7 log", "step 6 done")])
    assert kind_of(answer) == Kind.SLOW_OR_ABSENT_RANK
    assert answer.first is not None
    assert answer.first.where == "rank 7"
    assert answer.first.confidence < HIGH


def test_timeouts_on_all_ranks_alone_say_nothing() -> None:
    answer = diagnose_texts([(f"rank {rank} log", WATCHDOG.format(rank)) for rank in range(8)])
    assert answer.first is None
    assert answer.trouble


def test_pod_status_goes_before_logs() -> None:
    answer = diagnose_texts(
        [("rank 0 log", "socket connection refused"), ("pod status", "head Waiting ImagePullBackOff")],
    )
    assert kind_of(answer) == Kind.IMAGE_PULL


def test_what_came_clearly_first_is_the_cause() -> None:
    late, early = finding(Kind.GPU_HARDWARE, 0.92, 100.0), finding(Kind.OBJECT_STORE, 0.92, 40.0)
    assert order([late, early]).first == early


def test_clocks_that_differ_by_a_second_decide_nothing() -> None:
    deep, other = finding(Kind.GPU_HARDWARE, 0.92, 100.0), finding(Kind.OBJECT_STORE, 0.92, 99.0)
    first = order([deep, other]).first
    assert first is not None
    assert first.kind == Kind.GPU_HARDWARE


def test_rivals_take_each_others_high_confidence() -> None:
    first = order([finding(Kind.GPU_HARDWARE, 0.92), finding(Kind.OBJECT_STORE, 0.92)]).first
    assert first is not None
    assert first.confidence < HIGH


def test_several_faint_possibilities_are_no_answer() -> None:
    faint = [finding(kind, 0.52) for kind in (Kind.STRAGGLER, Kind.LOSS_SCALE, Kind.OBJECT_STORE)]
    assert order(faint).first is None


findings = st.builds(
    finding,
    st.sampled_from(list(Kind)),
    st.floats(0.3, 0.97),
    st.none() | st.floats(0, 1000),
)


@given(st.lists(findings, max_size=8, unique_by=lambda one: one.kind), st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_findings(found: list[Finding], luck: random.Random) -> None:
    shuffled = list(found)
    luck.shuffle(shuffled)
    assert order(shuffled) == order(found)


@given(st.lists(findings, max_size=8))
def test_nothing_is_lost_and_no_confidence_grows_past_certainty(found: list[Finding]) -> None:
    ordered = order(found)
    everything = [*([ordered.first] if ordered.first else []), *ordered.others]
    assert {one.kind for one in everything} == {one.kind for one in found}
    assert all(one.confidence <= 1 for one in everything)

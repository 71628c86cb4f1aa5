"""From spoiled measurements to a verdict: who is named, and nobody where nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.preflight.made_up import FACTS, SPEED, healthy
from warpbeam.pool import LOCAL_POOL, Pool, parse_pool
from warpbeam.preflight.busbw import Op
from warpbeam.preflight.expected import Expected, expected_of
from warpbeam.preflight.judge import judge
from warpbeam.preflight.judge_ranks import slow_ranks
from warpbeam.preflight.measured import Clock, Collective, How, Lost, Measured, Skipped
from warpbeam.preflight.verdict import Level, Verdict, rank_words

NOTHING = Expected()


def said(verdict: Verdict, check: str) -> tuple[Level, str]:
    row = next(row for row in verdict.rows if row.check == check)
    return row.level, row.where


def h100(**figures: float) -> Pool:
    accelerator = {"kind": "H100-SXM", "memory_gib": 80, "figures": figures}
    storage = {"kind": "s3", "uri": "s3://bucket/prefix"}
    more = {"name": "h100", "accelerator": accelerator, "nodes": 2, "accelerators_per_node": 8, "storage": storage}
    return parse_pool(LOCAL_POOL | more)


@given(st.integers(1, 4), st.integers(1, 8))
def test_healthy_machines_pass(nodes: int, per_node: int) -> None:
    verdict = judge(healthy(nodes, per_node), NOTHING)
    assert (verdict.passed, verdict.suspects, verdict.exit_code, verdict.sentence) == (True, (), 0, "passed")


def test_the_answer_is_json() -> None:
    measured = healthy()
    value = json.loads(json.dumps(judge(measured, NOTHING).to_dict(measured, pool="local")))
    assert (value["schema"], value["passed"], value["suspects"]) == ("warpbeam/preflight/v1", True, [])
    row = value["measured"]["collectives"][0]
    assert row["busbw"] == pytest.approx(2**20 / 0.01 * 2 * 7 / 8)


@given(st.integers(2, 16), st.data())
def test_a_slow_rank_is_named_whatever_its_number(count: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, count - 1))
    measured = healthy(1, count)
    measured.speeds[slow] = replace(SPEED, flops=1e11, cpu_share=0.1, cpu_limit=0.1)
    verdict = judge(measured, NOTHING)
    assert [suspect.where for suspect in verdict.suspects] == [f"rank {slow}"]
    assert "allows 0.1 of a core" in verdict.suspects[0].what
    assert (verdict.exit_code, said(verdict, "matmul")) == (1, (Level.FAIL, f"rank {slow}"))


@given(st.dictionaries(st.integers(0, 31), st.floats(60, 100), min_size=1, max_size=16), st.booleans())
def test_ranks_that_differ_by_less_than_half_are_alike(values: dict[int, float], on_cpu: bool) -> None:
    speeds = dict.fromkeys(values, replace(SPEED, cpu_share=1.0 if on_cpu else None))
    assert slow_ranks(values, speeds) == []


def test_cores_are_shared_and_accelerators_are_not() -> None:
    values = {0: 1.0, 1: 1.0, 2: 0.4}
    assert slow_ranks(values, dict.fromkeys(values, SPEED)) == [], "somebody else's process was there"
    assert slow_ranks(values, dict.fromkeys(values, replace(SPEED, cpu_share=None))) == [2]


def test_on_a_busy_machine_nobody_is_blamed_for_what_others_take() -> None:
    measured = healthy(1, 4)
    measured.speeds = dict.fromkeys(range(4), replace(SPEED, cpu_share=0.4))
    measured.speeds[2] = replace(SPEED, flops=1e11, cpu_share=0.05)
    verdict = judge(measured, NOTHING)
    assert (verdict.suspects, said(verdict, "cores")) == ((), (Level.WARN, ""))
    measured.speeds[2] = replace(SPEED, flops=1e11, cpu_share=0.05, cpu_limit=0.1)
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["rank 2"]


def test_a_limit_that_the_others_do_not_have_is_no_chance() -> None:
    values = {0: 1.0, 1: 1.0, 2: 0.6}
    speeds = {**dict.fromkeys(values, SPEED), 2: replace(SPEED, cpu_limit=0.5)}
    assert slow_ranks(values, speeds) == [2]
    assert slow_ranks(values, dict.fromkeys(values, replace(SPEED, cpu_limit=0.5))) == []


def test_a_node_all_of_whose_ranks_are_slow_is_named_as_a_node() -> None:
    measured = healthy(4, 2)
    for rank in (4, 5):
        measured.speeds[rank] = replace(SPEED, flops=2e11)
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, suspect.ranks, suspect.owner) == ("node gpu-2", (4, 5), "infra")


def test_slow_links_of_a_slow_rank_say_nothing_more() -> None:
    measured = healthy(1, 8)
    measured.speeds[3] = replace(SPEED, flops=1e11)
    measured.links = [replace(link, bandwidth=1e7) if 3 in (link.one, link.other) else link for link in measured.links]
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["rank 3"]


def test_links_of_ranks_that_share_cores_are_not_judged_by_their_speed() -> None:
    measured = healthy(2, 4)
    first = measured.links[0]
    measured.links[0] = replace(first, bandwidth=1e7)
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["ranks 0 and 1"]
    measured.machine = {rank: FACTS | {"cores": 2} for rank in range(8)}
    verdict = judge(measured, NOTHING)
    assert (verdict.passed, said(verdict, "link bandwidth")) == (True, (Level.INFO, ""))


def test_a_wrong_product_is_a_damaged_device() -> None:
    measured = healthy()
    measured.speeds[6] = replace(SPEED, right=False)
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, "wrong products" in suspect.what, suspect.nodes) == ("rank 6", True, ("gpu-1",))


def test_a_dead_link_is_a_pair_and_explains_what_it_stopped() -> None:
    measured = healthy(3, 1)
    measured.links = [
        replace(link, error="timed out", bandwidth=None, latency_s=None) if (link.one, link.other) == (1, 2) else link
        for link in measured.links
    ]
    measured.collectives = []
    measured.skipped = [Skipped("collectives", "a link is dead: they would wait for it")]
    verdict = judge(measured, NOTHING)
    (suspect,) = verdict.suspects
    assert (suspect.where, suspect.ranks, suspect.nodes) == ("ranks 1 and 2", (1, 2), ("gpu-1", "gpu-2"))
    assert (verdict.exit_code, said(verdict, "links")) == (1, (Level.FAIL, ""))


def test_when_no_two_ranks_meet_it_is_the_job_and_not_a_pair() -> None:
    measured = healthy(2, 2)
    measured.links = [replace(link, error="timed out", bandwidth=None, latency_s=None) for link in measured.links]
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, suspect.owner, suspect.named) == ("job", "platform", False)


def lost_one(how: How, rank: int, what: str = "") -> Lost:
    return Lost(rank, how, "links", 12.0, what, "gpu-0")


def test_a_death_explains_the_silence_of_the_others() -> None:
    measured = healthy()
    measured.lost = [lost_one(How.HANGS, 1), lost_one(How.DIED, 2, "ended by signal 9 (SIGKILL)")]
    measured.errors = [("links", 4, "RuntimeError: connection closed by peer")]
    verdict = judge(measured, NOTHING)
    assert [suspect.where for suspect in verdict.suspects] == ["rank 2"]
    assert verdict.sentence == "failed: rank 2: died (links, after 12 s): ended by signal 9 (SIGKILL)"
    assert said(verdict, "ranks") == (Level.FAIL, "ranks 1 and 2")


def test_everybody_who_is_silent_is_named() -> None:
    measured = healthy()
    measured.lost = [lost_one(How.HANGS, 1), lost_one(How.NEVER_JOINED, 5)]
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["rank 1", "rank 5"]


def test_another_version_of_torch_is_named_and_another_of_a_small_package_is_told() -> None:
    measured = healthy(1, 4)
    measured.machine[2] = FACTS | {"versions": {"torch": "2.12.0", "python": "3.11.9"}}
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, suspect.owner) == ("rank 2", "platform")
    assert suspect.what == "torch is 2.12.0, on the other ranks 2.13.0"
    measured.machine[2] = FACTS | {"versions": {**FACTS["versions"], "numpy": "2.0"}}
    verdict = judge(measured, NOTHING)
    assert (verdict.passed, said(verdict, "version of numpy")) == (True, (Level.WARN, "rank 2"))


def test_clocks_are_held_against_the_middle_one_and_less_their_own_error() -> None:
    measured = healthy(1, 4)
    measured.clocks = {rank: Clock(100.0, 0.01) for rank in range(4)}  # the launcher's own is the odd one
    assert said(judge(measured, NOTHING), "clocks") == (Level.OK, "")
    measured.clocks[3] = Clock(102.0, 0.01)
    assert said(judge(measured, NOTHING), "clocks") == (Level.WARN, "rank 3")
    measured.clocks[3] = Clock(102.0, 3.0)  # it answered slowly: nobody knows
    assert said(judge(measured, NOTHING), "clocks") == (Level.OK, "")
    measured.clocks[3] = Clock(1000.0, 0.01)
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["node gpu-0"]


@pytest.mark.parametrize(
    ("fact", "value", "promise", "check", "level"),
    [
        ("shm_free_bytes", 64 << 20, Expected(shm_bytes=160 << 20), "/dev/shm", Level.FAIL),
        ("shm_free_bytes", 64 << 20, NOTHING, "/dev/shm", Level.OK),
        ("shm_error", "No space left on device", NOTHING, "/dev/shm", Level.FAIL),
        ("open_files", 256, NOTHING, "open files", Level.FAIL),
        ("open_files", 2048, NOTHING, "open files", Level.WARN),
        ("open_files", None, NOTHING, "open files", Level.OK),
        ("memlock_bytes", 65536, NOTHING, "pinned memory", Level.INFO),
        ("memlock_bytes", 65536, Expected(memlock=True), "pinned memory", Level.FAIL),
        ("memlock_bytes", None, Expected(memlock=True), "pinned memory", Level.OK),
    ],
)
def test_limits(fact: str, value: object, promise: Expected, check: str, level: Level) -> None:
    measured = healthy(2, 4)
    measured.machine[5] = FACTS | {fact: value}
    verdict = judge(measured, promise)
    assert said(verdict, check)[0] is level
    assert verdict.passed == (level is not Level.FAIL)


def test_a_name_that_is_not_found_is_told_with_the_rank() -> None:
    measured = healthy()
    measured.machine[1] = FACTS | {"names": {"s3.storage.svc": {"seconds": 5.0, "error": "Name or service not known"}}}
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, suspect.owner) == ("rank 1", "platform")
    assert "s3.storage.svc" in suspect.what


def test_a_store_that_refuses_is_the_platforms_and_a_full_disk_is_infras() -> None:
    measured = healthy()
    measured.storage[0]["store"] = {"error": "the store rejects the credentials"}
    measured.storage[4]["disk"] = {"error": "/scratch: No space left on device"}
    found = {suspect.where: suspect.owner for suspect in judge(measured, NOTHING).suspects}
    assert found == {"node gpu-0": "platform", "node gpu-1": "infra"}


def test_an_error_in_one_rank_names_it_and_in_all_of_them_nobody() -> None:
    measured = healthy()
    measured.errors = [("devices", 3, "RuntimeError: CUDA error: an illegal memory access")]
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["rank 3"]
    measured.errors = [("joining all", rank, "RuntimeError: no such interface") for rank in range(8)]
    (suspect,) = judge(measured, NOTHING).suspects
    assert (suspect.where, suspect.owner) == ("job", "unknown")


def test_gpus_are_held_against_the_datasheet() -> None:
    promise = expected_of(h100(), 16)
    measured = healthy(2, 8, device="NVIDIA H100 80GB HBM3")
    good = replace(SPEED, flops=700e12, memory_bandwidth=3.0e12, to_device=55e9, from_device=55e9, cpu_share=None)
    measured.speeds = dict.fromkeys(range(16), good)
    measured.collectives = [
        Collective(op, "inside", 1 << 30, 8, dict.fromkeys(range(16), (1 << 30) * 1.75 / 420e9))
        for op in (Op.ALL_REDUCE,)
    ]
    assert judge(measured, promise).passed
    measured.speeds[9] = replace(good, to_device=12e9)  # a PCIe link that came up at a quarter of its width
    verdict = judge(measured, promise)
    assert [suspect.where for suspect in verdict.suspects] == ["rank 9"]
    assert said(verdict, "host to device") == (Level.FAIL, "rank 9")


def test_all_ranks_below_the_promise_are_found_though_they_are_alike() -> None:
    promise = expected_of(h100(), 16)
    measured = healthy(2, 8, device="NVIDIA H100 80GB HBM3")
    slow = replace(SPEED, flops=300e12, memory_bandwidth=3e12, to_device=55e9, from_device=55e9)
    measured.speeds = dict.fromkeys(range(16), slow)
    verdict = judge(measured, promise)
    assert (verdict.passed, said(verdict, "matmul")[0]) == (False, Level.FAIL)


def test_a_gpu_pool_whose_ranks_see_no_gpu_fails() -> None:
    (suspect,) = judge(healthy(2, 8), expected_of(h100(), 16)).suspects
    assert (suspect.where, "no accelerator" in suspect.what) == ("job", True)


def test_across_nodes_the_network_is_the_promise() -> None:
    promise = expected_of(h100(nic_bandwidth=25e9), 16)
    assert promise.busbw(Op.ALL_REDUCE, 8, 8) == 450e9
    assert promise.busbw(Op.ALL_REDUCE, 8, 16) == 8 * 25e9
    assert promise.busbw(Op.ALL_TO_ALL, 8, 16) == pytest.approx(25e9 * 15 / 8)
    assert expected_of(h100(), 16).busbw(Op.ALL_GATHER, 8, 16) == 400e9


def test_cpus_promise_only_what_their_pool_states() -> None:
    local = parse_pool(LOCAL_POOL)
    assert expected_of(local, 4) == Expected(kind="cpu")
    stated = parse_pool(
        LOCAL_POOL | {"accelerator": {"kind": "cpu", "memory_gib": 4, "figures": {"link_bandwidth": 2e9}}}
    )
    promise = expected_of(stated, 4)
    assert (promise.inside, promise.flops, promise.source) == (2e9, None, "figures of pool local")


def test_the_node_whose_own_ranks_are_slow_together_is_named() -> None:
    measured = healthy(3, 2)
    seconds = {rank: 0.05 if rank in (2, 3) else 0.01 for rank in range(6)}
    measured.collectives = [Collective(Op.ALL_GATHER, "inside", 1 << 20, 2, seconds)]
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["node gpu-1"]


def test_a_wrong_result_of_a_collective_names_the_rank() -> None:
    measured = healthy(1, 4)
    measured.collectives = [Collective(Op.ALL_REDUCE, "all", 1 << 20, 4, dict.fromkeys(range(4), 0.01), wrong=(2,))]
    assert [suspect.where for suspect in judge(measured, NOTHING).suspects] == ["rank 2"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([4, 3], "ranks 3 and 4"),
        (range(8), "ranks 0-7"),
        ([1, 4, 9], "ranks 1, 4 and 9"),
        ([1, 4, 9, 12, 13], "ranks 1, 4 and 3 more"),
    ],
)
def test_ranks_in_words(ranks: list[int], words: str) -> None:
    assert rank_words(ranks) == words


def test_nothing_measured_is_no_pass() -> None:
    measured = Measured(wanted=2, lost=[lost_one(How.NEVER_JOINED, 0), lost_one(How.NEVER_JOINED, 1)])
    assert judge(measured, NOTHING).exit_code == 1

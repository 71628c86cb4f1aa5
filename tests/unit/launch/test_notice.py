"""Which drained machines concern a run, and how long it has left."""

from __future__ import annotations

from warpbeam.launch.notice import first_deadline_s

OURS = {"state": "CREATED", "bundles_to_node_id": {0: "a", 1: "b"}}
GONE = {"state": "REMOVED", "bundles_to_node_id": {0: "c"}}
WAITS = {"state": "PENDING", "bundles_to_node_id": {0: "", 1: ""}}


def test_the_first_deadline_of_our_machines() -> None:
    assert first_deadline_s({"a": 130_000, "b": 120_000, "c": 101_000}, [OURS, GONE], 100) == 20
    assert first_deadline_s({"b": 0}, [OURS], 100) == float("inf")
    assert first_deadline_s({"a": 99_000}, [OURS], 100) == -1


def test_other_machines_do_not_concern_us() -> None:
    assert first_deadline_s({"c": 0, "d": 101_000}, [OURS, GONE, WAITS], 100) is None
    assert first_deadline_s({"a": 0}, [], 100) is None

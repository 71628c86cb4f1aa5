from __future__ import annotations

import json

import pytest

from tests.unit.record.memory_store import MemoryStore
from warpbeam.record.phases import PhaseClock
from warpbeam.record.writer import RecordWriter

BASE = "teams/support/runs/sft/record/0001-ab"


def writer(store: MemoryStore, **options: object) -> RecordWriter:
    return RecordWriter(store, "support", "sft", "0001-ab", "rank-0", wall=lambda: 1_700_000_000.0, **options)  # type: ignore[arg-type]


def rows(store: MemoryStore, kind: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in store.objects[f"{BASE}/{kind}/rank-0/000000.jsonl"].splitlines()]


def test_what_was_written_is_there_after_close() -> None:
    store = MemoryStore()
    with writer(store, clock=PhaseClock()) as record:
        record.event("model_built", parameters=7)
        record.metrics({"step": 1, "loss_metrics/global_avg_loss": 2.5})
        record.beat(3, "compute")
    assert rows(store, "events")[0]["kind"] == "model_built"
    assert rows(store, "metrics") == [
        {"step": 1, "loss_metrics/global_avg_loss": 2.5, "at": 1_700_000_000.0, "attempt": "0001-ab", "who": "rank-0"}
    ]
    beat = json.loads(store.objects[f"{BASE}/heartbeat/rank-0.json"])
    assert (beat["step"], beat["phase"], beat["ended"]) == (3, "compute", True)
    assert {"role", "pid", "start", "boot_id", "host", "buckets"} <= set(beat)
    record.close()


def test_a_failing_store_costs_nothing_but_time(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    store.failures = 1
    record = writer(store)
    record.event("started")
    record.close()
    assert rows(store, "events")[0]["kind"] == "started"
    assert capsys.readouterr().err.count("the record cannot be written now") == 1


def test_secrets_never_reach_the_store() -> None:
    store = MemoryStore()
    with writer(store, secrets=["hf_canary_value"]) as record:
        record.event("note", text="login with hf_canary_value failed")
    assert not any(b"hf_canary_value" in data for data in store.objects.values())


def test_a_stop_request_is_seen() -> None:
    store = MemoryStore()
    store.objects[f"{BASE}/stop.json"] = b'{"by": "somebody", "reason": "asked"}'
    record = writer(store, watch_stop=True)
    record.close()
    assert record.stop_requested == {"by": "somebody", "reason": "asked"}

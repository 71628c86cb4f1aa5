from __future__ import annotations

import pytest

from tests.unit.record.memory_store import MemoryStore
from warpbeam.errors import InfraError
from warpbeam.record.stream import CHUNK_BYTES, StreamReader, StreamWriter


def test_a_reader_sees_each_byte_once_while_the_last_object_grows() -> None:
    store = MemoryStore()
    writer = StreamWriter(store, "r/events/rank-0", "jsonl")
    reader = StreamReader(store, "r/events")
    seen = b""
    for number in range(300):
        writer.append(b"%06d " % number + b"x" * 1000 + b"\n")
        writer.flush()
        seen += reader.read().get("rank-0", b"")
    assert [int(line[:6]) for line in seen.splitlines()] == list(range(300))
    assert len(store.objects) == 5
    assert all(len(data) <= CHUNK_BYTES for data in store.objects.values())
    assert reader.read() == {}


def test_an_absent_store_loses_nothing_that_fits() -> None:
    store = MemoryStore()
    writer = StreamWriter(store, "r", "jsonl")
    writer.append(b"a\n")
    store.failures = 1
    with pytest.raises(InfraError):
        writer.flush()
    writer.append(b"b\n")
    writer.flush()
    assert store.objects == {"r/000000.jsonl": b"a\nb\n"}


def test_memory_is_bounded_and_losses_are_counted() -> None:
    store = MemoryStore()
    writer = StreamWriter(store, "r", "jsonl", pending_bytes=100)
    for number in range(50):
        writer.append(b"%09d\n" % number)
    assert writer.dropped == 40
    writer.flush()
    assert store.objects["r/000000.jsonl"].endswith(b"000000049\n")


def test_a_reader_may_begin_with_what_is_young() -> None:
    store = MemoryStore()
    store.put("p/who/000000.log", b"old\n")
    store.put("p/who/000001.log", b"young\n")
    store.ages = {"p/who/000000.log": 900.0, "p/who/000001.log": 30.0}
    reader = StreamReader(store, "p", since_s=60.0)  # type: ignore[arg-type]
    assert reader.read() == {"who": b"young\n"}
    store.put("p/who/000000.log", b"old\nmore\n")
    assert reader.read() == {"who": b"more\n"}, "what comes later is read whatever its age"

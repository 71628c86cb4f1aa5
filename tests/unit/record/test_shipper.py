from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.record.memory_store import MemoryStore
from warpbeam.errors import InfraError
from warpbeam.record.shipper import LogShipper, log_path
from warpbeam.record.stream import CHUNK_BYTES

ACTIONS = ["turn", "fail", "die", "none"]
PREFIX = "record/a1/logs/rank-0"


def shipped(store: MemoryStore) -> bytes:
    return b"".join(store.objects[key] for key in sorted(store.objects))


def append(directory: Path, data: bytes, generation: int = 0) -> None:
    with log_path(directory, "rank-0", generation).open("ab") as file:
        file.write(data)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.tuples(st.integers(1, CHUNK_BYTES), st.sampled_from(["turn", "fail", "die", "none"])), max_size=8
    )
)
def test_no_byte_is_lost_or_repeated(pieces: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("logs")
    store = MemoryStore()
    shipper = LogShipper(store, PREFIX, directory, "rank-0")
    written = b""
    for number, (size, what) in enumerate(pieces):
        data = b"%d:" % number + b"x" * size + b"\n"
        append(directory, data)
        written += data
        before = dict(store.objects)
        if what == "turn":
            shipper.turn()
        elif what == "fail":
            store.failures = 1
            with pytest.raises(InfraError):
                shipper.turn()
        elif what == "die":
            shipper.turn()
            shipper = LogShipper(store, PREFIX, directory, "rank-0")
        for key, old in before.items():
            assert store.objects[key].startswith(old), "what a reader saw must stay"
    LogShipper(store, PREFIX, directory, "rank-0").turn(final=True)
    assert shipped(store) == written


def test_a_death_between_the_note_and_the_object(tmp_path: Path) -> None:
    store = MemoryStore()
    append(tmp_path, b"a" * CHUNK_BYTES + b"\n")
    shipper = LogShipper(store, PREFIX, tmp_path, "rank-0")
    shipper.turn()
    append(tmp_path, b"last words without a newline")
    store.failures = 1
    with pytest.raises(InfraError):
        shipper.turn()
    LogShipper(store, PREFIX, tmp_path, "rank-0").turn(final=True)
    assert shipped(store).endswith(b"a\nlast words without a newline")
    assert len(shipped(store)) == CHUNK_BYTES + 1 + 28


def test_a_secret_across_two_turns(tmp_path: Path) -> None:
    store = MemoryStore()
    shipper = LogShipper(store, PREFIX, tmp_path, "rank-0", secrets=["canary-12345"])
    append(tmp_path, b"x canary-")
    shipper.turn()
    append(tmp_path, b"12345 y canary-1")
    shipper.turn(final=True)
    assert shipped(store) == b"x [secret] y canary-1"


def test_a_flood_is_thinned_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpbeam.record.shipper.BURST_BYTES", 100_000)
    monkeypatch.setattr("warpbeam.record.shipper.READ_BYTES", 10_000)
    store = MemoryStore()
    shipper = LogShipper(store, PREFIX, tmp_path, "rank-0", now=lambda: 0.0)
    append(tmp_path, b"".join(b"line %06d\n" % n for n in range(100_000)))
    shipper.turn(final=True)
    text = shipped(store).decode()
    assert "lines (1 MB) left out here" in text
    assert text.endswith("line 099999\n")
    assert len(text) < 20_000


def test_a_new_generation_follows_the_old(tmp_path: Path) -> None:
    store = MemoryStore()
    append(tmp_path, b"one\n")
    append(tmp_path, b"two\n", generation=1)
    shipper = LogShipper(store, PREFIX, tmp_path, "rank-0")
    shipper.turn()
    assert not log_path(tmp_path, "rank-0", 0).exists()
    append(tmp_path, b"three\n", generation=1)
    shipper.turn(final=True)
    assert shipped(store) == b"one\ntwo\nthree\n"

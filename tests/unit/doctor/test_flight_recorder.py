"""Dumps are read without running anything of theirs, and compared."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from warpbeam.doctor.collect import collect
from warpbeam.doctor.diagnose import diagnose
from warpbeam.doctor.flight_recorder import BadDump, analyse, load, rank_of_dump
from warpbeam.doctor.kinds import Kind

WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def call(number: int, name: str = "nccl:all_reduce", size: int = 8) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "is_p2p": False,
        "profiling_name": name,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
    }


def dump(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": WORLD, "entries": list(calls)}


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


class Persistent(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "outside" if obj == "secret" else None


def test_equal_dumps_say_nothing() -> None:
    assert analyse({rank: dump(call(7), call(8)) for rank in range(4)}) == []


def test_the_first_differing_collective_is_named() -> None:
    same, other = dump(call(7), call(8), call(9)), dump(call(7), call(8, "nccl:broadcast", 1), call(9, size=2))
    (line,) = analyse({0: same, 1: same, 2: other, 3: same})
    assert "ranks 0 and 2 differ at #8 of group 0: all_reduce [[8]] / broadcast [[1]]" in line


def test_only_numbers_that_all_rings_still_hold_are_compared() -> None:
    assert analyse({0: dump(call(1, size=1), call(8)), 1: dump(call(8)), 2: dump(call(8)), 3: dump(call(8))}) == []


def test_the_rank_without_a_dump_is_the_suspect() -> None:
    lines = analyse({rank: dump(call(7)) for rank in range(3)})
    assert lines == ["flight recorder: rank 3 wrote no dump, 3 others did"]


def test_the_rank_with_the_lowest_number_is_named() -> None:
    lines = analyse({0: dump(call(7), call(8)), 1: dump(call(7), call(8)), 2: dump(call(7)), 3: dump(call(7), call(8))})
    assert lines == ["flight recorder: rank 2 is behind in group 0: at #7, others at #8"]


def test_dumps_among_logs_become_evidence() -> None:
    dumps = [(f"nccl_trace_rank_{rank}", [pickle.dumps(dump(call(7)))]) for rank in range(3)]
    first = diagnose(collect(dumps).facts).first
    assert first is not None
    assert (first.kind, first.where) == (Kind.SLOW_OR_ABSENT_RANK, "rank 3")


@pytest.mark.parametrize(
    "content",
    [
        {"entries": [Shell()]},
        {"entries": [], "pg_config": pytest.raises},
        {"entries": [set, frozenset]},
        {"no": "entries"},
        ["entries"],
    ],
)
def test_a_dump_that_wants_more_than_values_is_refused(content: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadDump):
        load(pickle.dumps(content))
    assert not (tmp_path / "hacked").exists()


def test_persistent_references_are_refused(tmp_path: Any) -> None:
    with (tmp_path / "dump").open("wb") as file:
        Persistent(file).dump({"entries": ["secret"]})
    with pytest.raises(BadDump, match="outside itself"):
        load((tmp_path / "dump").read_bytes())


@pytest.mark.parametrize("data", [b"", b"\x80\x05", b"{", b"cos\nsystem\n(S'touch hacked'\ntR.", b"\x00" * 100])
def test_broken_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(BadDump):
        load(data)


def test_entries_of_a_wrong_shape_are_passed_over() -> None:
    odd = {
        "pg_config": {"0": "no dict"},
        "entries": [1, None, {}, {"collective_seq_id": "x"}, {"collective_seq_id": 3}],
    }
    assert analyse({0: odd, 1: odd}) == []


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("dumps/comm_lib_trace_rank_3", 3), ("fr_trace_0.pickle", 0), ("rank-3.log", None)],
)
def test_dumps_are_known_by_their_names(name: str, rank: int | None) -> None:
    assert rank_of_dump(name) == rank

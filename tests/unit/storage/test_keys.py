from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.errors import UserError
from warpbeam.storage import layout
from warpbeam.storage.keys import check_key, check_prefix, join_key

_pathy = st.text(alphabet=st.sampled_from("ab./\\.. \n\x00é~"), max_size=30) | st.text(max_size=30)
_name = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)


@given(_pathy)
def test_an_accepted_key_stays_below_its_root_and_is_one_spelling(key: str) -> None:
    try:
        check_key(key)
    except UserError:
        return
    joined = os.path.normpath(f"/root/{key}")
    assert joined == f"/root/{key}"  # nothing to normalise: no `..`, no `//`, no way out
    assert joined.startswith("/root/")


@given(_pathy)
def test_a_prefix_of_an_accepted_key_can_be_listed(key: str) -> None:
    try:
        check_key(key)
    except UserError:
        return
    check_prefix(key)
    check_prefix(f"{key}/")


def test_prefixes() -> None:
    assert check_prefix("") == ""
    for bad in ("/", "a//", "../", "a/../b"):
        with pytest.raises(UserError):
            check_prefix(bad)


def test_join_key() -> None:
    assert join_key("", "a/", "/b", "c") == "a/b/c"
    assert join_key("", "") == ""


@given(_name, _name, st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_log_keys_sort_as_their_numbers(team: str, run: str, a: int, b: int) -> None:
    first, second = layout.log_key(team, run, a), layout.log_key(team, run, b)
    assert (first < second) == (a < b)
    assert layout.parse_log_key(first) == a
    assert check_key(first).startswith(layout.log_prefix(team, run) + "/")


def test_layout_is_the_designs() -> None:
    assert layout.data_prefix("t", "f1") == "teams/t/data/f1"
    assert layout.log_key("t", "r", 7) == "teams/t/runs/r/log/000000000007"
    assert layout.checkpoint_prefix("t", "r", 40, "a1") == "teams/t/runs/r/checkpoints/00000040/a1"
    assert layout.record_prefix("t", "r", "a1") == "teams/t/runs/r/record/a1"
    assert layout.heartbeat_key("t", "r", "a1", "rank-0") == "teams/t/runs/r/record/a1/heartbeat/rank-0.json"
    assert layout.submitted_prefix("t", "r") == "teams/t/runs/r/submitted"
    assert layout.run_model_prefix("t", "r") == "teams/t/runs/r/model"
    assert layout.model_prefix("t", "m", "v") == "teams/t/models/m/v"
    assert layout.pool_prefix("p") == "pools/p"


@given(_name, _name, st.integers(0, 10**9), st.integers(0, 4 * 10**9))
def test_index_keys_read_back(team: str, run: str, step: int, at: int) -> None:
    key = layout.index_key(team, run, "running", step, at)
    hint = layout.parse_index_key(key)
    assert hint == (run, "running", step, datetime.fromtimestamp(at, UTC))


@pytest.mark.parametrize("key", ["a/b", "a/x,y,z", "a/done,1", "a/done,1,notatime", "a/done,-1,20260101T000000Z"])
def test_other_keys_are_not_index_keys(key: str) -> None:
    assert layout.parse_index_key(key) is None


@pytest.mark.parametrize("key", ["log/1", "log/00000000000x", "log/٠٠٠٠٠٠٠٠٠٠٠٠", "log/manifest.json"])
def test_other_keys_are_not_log_keys(key: str) -> None:
    assert layout.parse_log_key(key) is None


@given(st.text(max_size=20))
def test_a_name_that_is_accepted_is_one_harmless_segment(name: str) -> None:
    try:
        layout.check_name(name)
    except UserError:
        return
    assert layout.run_prefix("t", name) == check_key(f"teams/t/runs/{name}")
    assert "/" not in name
    assert "," not in name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "a\n", "ü", "a" * 101])
def test_bad_names(name: str) -> None:
    for build in (layout.team_prefix, lambda n: layout.model_prefix("t", n, "v"), lambda n: layout.run_prefix("t", n)):
        with pytest.raises(UserError, match="cannot be used"):
            build(name)


def test_negative_numbers() -> None:
    for build in (
        lambda: layout.log_key("t", "r", -1),
        lambda: layout.checkpoint_prefix("t", "r", -1, "a"),
        lambda: layout.index_key("t", "r", "s", -1, 0),
    ):
        with pytest.raises(ValueError, match="must"):
            build()

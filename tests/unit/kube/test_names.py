"""No run's name becomes one that KubeRay refuses, and no two runs meet in one object."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.job_checks import NAME
from warpbeam.kube.names import CLUSTER, MOST_CHARACTERS, MOST_IN_CRON_JOB, SERVE, object_name

RUNS = st.from_regex(NAME, fullmatch=True).filter(lambda name: len(name) <= 63)


@pytest.mark.parametrize("length", [1, 40, 46, 47])
def test_a_name_that_fits_stays(length: int) -> None:
    assert object_name("a" * length) == "a" * length


@pytest.mark.parametrize("length", [48, 63])
def test_a_longer_one_is_shortened_with_a_digest(length: int) -> None:
    made = object_name("a" * length)
    assert len(made) == MOST_CHARACTERS
    assert made != object_name("a" * (length - 1))


def test_alike_names_stay_apart() -> None:
    stem = "support-model-with-a-name-that-is-quite-a-lot-too-long"
    assert object_name(f"{stem}-1") != object_name(f"{stem}-2")
    assert object_name("7b") != object_name("run-7b")


@given(RUNS)
def test_every_name_is_a_dns_label(run: str) -> None:
    for suffix, most in (("", MOST_CHARACTERS), (SERVE, MOST_CHARACTERS), ("", MOST_IN_CRON_JOB)):
        made = object_name(run, suffix=suffix, most=most)
        assert len(made) <= most
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)


KINDS = st.sampled_from(["", CLUSTER, SERVE])
ALIKE = RUNS | st.tuples(RUNS, KINDS).map("".join).filter(lambda name: len(name) <= 63)


@given(ALIKE, KINDS, ALIKE, KINDS)
def test_two_runs_or_kinds_never_share_a_name(one: str, kind: str, other: str, another: str) -> None:
    """KubeRay's head service is named after the object alone, whatever its kind."""
    same = object_name(one, suffix=kind) == object_name(other, suffix=another)
    assert same == ((one, kind) == (other, another))


def test_a_run_may_be_called_like_anothers_service() -> None:
    assert object_name("chat", suffix=SERVE) == "chat-serve"
    assert object_name("chat-serve").startswith("chat-serve-")
    assert object_name("chat-serve", suffix=SERVE) == "chat-serve-serve"

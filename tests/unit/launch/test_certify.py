"""What a certificate will do to a run, before it does it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.launch import jobs
from warpbeam.errors import UserError
from warpbeam.job import LoadedJob
from warpbeam.launch.certify import Asked, plan_kills, settle


@given(st.integers(8, 200), st.integers(1, 40), st.integers(0, 5))
def test_kills_are_seeded_and_leave_steps_to_repeat(steps: int, kills: int, seed: int) -> None:
    asked = Asked(steps, 2, kills, (2,), seed)
    if kills > steps - 4:
        with pytest.raises(UserError, match="do not fit"):
            plan_kills(asked)
        return
    found = plan_kills(asked)
    assert found == plan_kills(asked)
    assert len(set(found)) == kills
    assert found == sorted(found)
    assert 2 <= found[0] <= found[-1] < steps - 2


def test_worlds_must_share_the_batch_and_each_needs_a_kill() -> None:
    job = jobs.job()  # a global batch of 4
    loaded = LoadedJob(job=job, path=Path("job.yaml"), root=Path(), digest="d")
    assert settle(loaded, 2, 1, [2, 1, 2], 24, 0) == Asked(24, 3, 2, (2, 1, 2), 0)
    assert settle(loaded, 2, 3, [], 24, 0) == Asked(24, 3, 3, (2,), 0)
    with pytest.raises(UserError, match="--worlds 3"):
        settle(loaded, 2, 1, [2, 3], 24, 0)

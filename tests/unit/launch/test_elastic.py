"""Which size an elastic job gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.launch import jobs
from warpbeam.launch.elastic import legal_sizes, room_for, size_for


@pytest.mark.parametrize(
    ("accelerators", "global_batch", "sizes"),
    [
        (4, 8, ()),
        ({"min": 1, "max": 8}, 8, (1, 2, 4, 8)),
        ({"min": 2, "max": 7}, 12, (2, 3, 4, 6)),
        ({"min": 2, "max": 100}, 12, (2, 3, 4, 6)),
        ({"min": 5, "max": 7}, 8, ()),
    ],
)
def test_sizes_share_the_batch_within_the_range_and_the_pool(
    accelerators: Any, global_batch: int, sizes: tuple[int, ...]
) -> None:
    train = {"method": "sft", "max_steps": 10, "global_batch": global_batch, "lr": 1e-3}
    job = jobs.job(resources={"accelerators": accelerators}, train=train)
    assert legal_sizes(job, jobs.pool(accelerators_per_node=8, cpus_per_worker=1)) == sizes


@given(st.sets(st.integers(1, 64), min_size=1), st.integers(0, 80))
def test_the_largest_that_fits_else_the_smallest(sizes: set[int], room: int) -> None:
    size = size_for(sorted(sizes), room)
    assert size in sizes
    assert size == min(sizes) or size <= room
    assert not any(size < other <= room for other in sizes)


def test_room_is_counted_node_by_node() -> None:
    need = {"CPU": 4.0, "GPU": 1.0}
    nodes = [{"CPU": 15.0, "GPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 64.0}, {"CPU": 3.0, "GPU": 2.0}]
    assert room_for(need, nodes) == 3 + 1
    assert room_for({"CPU": 0.5, "GPU": 0.0}, [{"CPU": 2.0}]) == 4
    assert room_for(need, []) == 0

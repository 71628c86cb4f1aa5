"""What a plan computes on, from a pool file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.jobs import pool
from warpbeam.errors import UserError
from warpbeam.plan.machine import machine_from_words, machine_of
from warpbeam.pool import Pool, parse_pool


def with_accelerator(**changes: Any) -> Pool:
    content = pool("H100-SXM", memory_gib=80, nodes=2, per_node=8).to_dict()
    content["accelerator"] |= changes
    return parse_pool(content)


def test_the_nominal_size_is_not_what_a_process_gets() -> None:
    assert machine_of(with_accelerator(), 16).memory_gib == pytest.approx(79.1)
    assert machine_of(with_accelerator(memory_gib=40), 16).memory_gib == 40, "a part of it, as the pool says"
    assert machine_of(with_accelerator(memory_gib=78), 16).memory_gib == 78


def test_a_pool_overrides_the_datasheet() -> None:
    machine = machine_of(with_accelerator(figures={"link_domain": 4, "nic_bandwidth": 12.5e9}), 16)
    assert machine.link_domain == 4
    assert machine.chip.nic_bandwidth == 12.5e9
    with pytest.raises(Exception, match="did you mean `link_domain`"):
        with_accelerator(figures={"link_domian": 4})


def test_an_accelerator_that_the_catalogue_lacks() -> None:
    with pytest.raises(UserError, match="no accelerator `X9000`") as caught:
        machine_of(with_accelerator(kind="X9000"), 8)
    assert "figures: {peak_bf16" in caught.value.fix
    figures = {"peak_bf16": 500e12, "peak_fp32": 60e12, "memory_bandwidth": 2e12}
    machine = machine_of(with_accelerator(kind="X9000", figures=figures), 8)
    assert machine.chip.peak("bf16") == 500e12
    assert machine.memory_gib == 80


def test_cpu_ranks_share_a_node() -> None:
    one, two = machine_of(pool(), 1), machine_of(pool(), 2)
    assert one.is_cpu
    assert one.chip.peak_fp32 == 2 * two.chip.peak_fp32
    assert (one.memory_gib, two.memory_gib) == (16, 8)


def test_a_few_of_a_node_and_then_more() -> None:
    """Five accelerators are a part of a node of eight; sixteen are two whole ones."""
    machine = machine_from_words("5xH100")
    assert (machine.per_node, machine.resized(16).per_node, machine.resized(3).per_node) == (5, 8, 3)
    with pytest.raises(UserError, match="more than the 1,048,576 accelerators"):
        machine_from_words("99999999999xH100")

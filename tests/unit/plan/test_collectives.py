"""Collectives against the alpha-beta formulas by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.plan.collectives import Fabric

EXACT = Fabric(domain=8, link=450e9, nic=50e9, link_latency=0.0, nic_latency=0.0)
ranks = st.integers(1, 4096)
volumes = st.floats(0.0, 1e12)


def test_all_reduce_in_a_domain() -> None:
    assert EXACT.all_reduce(1e9, 8) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert replace(EXACT, link_latency=1e-6).all_reduce(0.0, 8) == pytest.approx(2 * 7e-6)


def test_between_domains_the_nics_of_all_ranks_share_the_volume() -> None:
    assert EXACT.all_gather(1e9, 16) == pytest.approx(7 / 8 * 1e9 / 450e9)  # still the links, barely
    assert EXACT.all_gather(1e9, 64) == pytest.approx(7 / 8 * 1e9 / (8 * 50e9))
    # one rank in each domain (tensor parallelism holds the others): one NIC
    assert EXACT.all_gather(1e9, 4, stride=8) == pytest.approx(3 / 4 * 1e9 / 50e9)


def test_all_to_all_keeps_what_is_near_near() -> None:
    assert EXACT.all_to_all(8e9, 8) == pytest.approx(7e9 / 450e9)
    assert EXACT.all_to_all(16e9, 16) == pytest.approx(8e9 / 50e9)
    assert EXACT.all_to_all(16e9, 16, far_share=0.25) == pytest.approx(2e9 / 50e9)


def test_a_send_is_slower_out_of_the_domain() -> None:
    assert EXACT.send(45e9, 1) == pytest.approx(0.1)
    assert EXACT.send(45e9, 8) == pytest.approx(0.9)


@given(volumes, ranks)
def test_one_rank_waits_for_nobody_and_more_bytes_take_longer(volume: float, group: int) -> None:
    fabric = replace(EXACT, link_latency=5e-6, nic_latency=2e-5)
    assert fabric.all_gather(volume, 1) == fabric.all_reduce(volume, 1) == fabric.all_to_all(volume, 1) == 0.0
    assert fabric.all_reduce(2 * volume, group) >= fabric.all_reduce(volume, group)
    assert fabric.all_reduce(volume, group) == pytest.approx(
        fabric.reduce_scatter(volume, group) + fabric.all_gather(volume, group)
    )


@given(st.floats(1e6, 1e12), st.integers(2, 9))
def test_more_domains_never_gather_faster(volume: float, power: int) -> None:
    fabric = replace(EXACT, link_latency=5e-6, nic_latency=2e-5)
    assert fabric.all_gather(volume, 8 * 2**power) >= fabric.all_gather(volume, 4 * 2**power)

"""The catalogue: every name people write finds its chip, and the figures are consistent."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.errors import UserError
from warpbeam.plan.hardware import CHIPS, Chip, find_chip, override


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("H100", "H100-SXM-80GB"),
        ("h100-sxm", "H100-SXM-80GB"),
        ("H100_SXM5", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("H100-80GB-SXM", "H100-SXM-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("H100 PCIe", "H100-PCIe-80GB"),
        ("H100-95GB-HBM2e", "H100-SXM-96GB-500W"),
        ("H100-96GB-HBM2e-500W", "H100-SXM-96GB-500W"),
        ("A100", "A100-SXM-80GB"),
        ("A100-40", "A100-SXM-40GB"),
        ("A100-40G", "A100-SXM-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("A100-SXM (README: 40GB)", "A100-SXM-40GB"),
        ("A100-80GB(assumed; 8xA100)", "A100-SXM-80GB"),
        ("A800/H800-80GB (not said which)", "A800-SXM-80GB"),
        ("NVIDIA A10G", "A10G-24GB"),
        ("H-100", "H100-SXM-80GB"),
        ("h 100 80GB", "H100-SXM-80GB"),
        ("A10", "A10-24GB"),
        ("l40s", "L40S-48GB"),
        ("NVIDIA L4", "L4-24GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("24GB-class (3090/4090)", "RTX3090-24GB"),
        ("40GB-class", "A100-SXM-40GB"),
        ("RTX 6000 Ada", "RTX6000Ada-48GB"),
        ("NVIDIA RTX A6000", "A6000-48GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"),
        ("B200 (printed H200; text says B200)", "B200-SXM-180GB"),
        ("B200/GB200-class (184GiB, by 60.2%=110.95GiB)", "B200-SXM-180GB"),
        ("B200-powerlimited", "B200-SXM-180GB"),
        ("GB200", "GB200-186GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("TPU v5p", "TPU-v5p"),
        ("tpu-v5litepod", "TPU-v5e"),
        ("cpu", "cpu"),
    ],
)
def test_names_as_people_write_them(written: str, meant: str) -> None:
    assert find_chip(written).name == meant


@pytest.mark.parametrize(
    ("written", "near"), [("H1000", "H100-SXM-80GB"), ("H100-40GB", "H100-SXM-80GB"), ("A10000", "A100")]
)
def test_an_unknown_name_gets_the_nearest(written: str, near: str) -> None:
    with pytest.raises(UserError, match=written) as raised:
        find_chip(written)
    assert near in raised.value.fix


@pytest.mark.parametrize("written", ["", "abacus", "80GB"])
def test_a_name_near_nothing_gets_the_list(written: str) -> None:
    with pytest.raises(UserError) as raised:
        find_chip(written)
    assert "H100" in raised.value.fix


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_figures_are_consistent(chip: Chip) -> None:
    assert find_chip(chip.name) is chip
    assert find_chip(chip.name.lower()) is chip
    assert max(chip.peak_bf16, chip.peak_fp16) >= chip.peak_fp32 or not chip.peak_bf16
    assert chip.peak_fp8 in (0, pytest.approx(2 * chip.peak_bf16, rel=0.02))
    assert chip.link_bandwidth >= chip.nic_bandwidth > 0
    assert chip.memory_bandwidth > chip.host_bandwidth or chip.form == "host"
    assert all(chip.peak(precision) > 0 for precision in ("fp32", "tf32", "fp16", "bf16", "fp8"))


def test_missing_units_fall_back() -> None:
    assert find_chip("V100").peak("bf16") == find_chip("V100").peak("fp32")
    assert find_chip("A100").peak("fp8") == find_chip("A100").peak("bf16")


def test_a_pool_overrides() -> None:
    chip = override(find_chip("H100"), nic_bandwidth=12.5e9, memory_gib=None)
    assert (chip.nic_bandwidth, chip.memory_gib) == (12.5e9, 79.1)
    with pytest.raises(UserError, match="nic_speed"):
        override(chip, nic_speed=1.0)


@given(st.text(max_size=20))
def test_any_text_is_a_chip_or_a_user_error(name: str) -> None:
    with suppress(UserError):
        assert find_chip(name) in CHIPS

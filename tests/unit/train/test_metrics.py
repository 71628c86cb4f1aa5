"""The row of a step, the formula of MFU, and the peaks of devices."""

from __future__ import annotations

import time

import pytest
import torch

from warpbeam.train.flops import peak_flops, training_flops_per_token
from warpbeam.train.metrics import StepMeter


def test_flops_of_a_known_model() -> None:
    """Qwen2.5-1.5B at 4096: 6 * 1.5437e9 + 12 * 28 * 1536 * 4096."""
    assert training_flops_per_token(1_543_714_304, 28, 1536, 4096) == pytest.approx(1.1376e10, rel=1e-3)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_peaks_by_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak


def test_rates_are_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = StepMeter(
        tokens_per_step=8000, world_size=4, device=torch.device("cpu"), flops_per_token=1e6, peak_flops=1e10
    )
    meter.data_wait_s = 0.5
    now[0] = 102.0
    row = meter.row(3)
    assert row["throughput(tps)"] == 1000
    assert row["throughput/global_tps"] == 4000
    assert row["tflops"] == pytest.approx(0.001)
    assert row["mfu(%)"] == pytest.approx(10)
    assert row["time_metrics/data_loading(%)"] == 25
    assert row["n_tokens_seen"] == 24_000
    now[0] = 103.0
    assert meter.row(4)["time_metrics/data_loading(s)"] == 0.0

"""The row of a step, the formula of MFU, and the peaks of devices."""

from __future__ import annotations

import time

import pytest
import torch
from transformers import AutoConfig

from warpbeam.plan.model_shape import model_shape
from warpbeam.train.flops import model_flops_per_token, peak_flops
from warpbeam.train.metrics import StepMeter


def test_flops_of_a_known_model() -> None:
    """Qwen2.5-1.5B at 4096: 6 * 1.5437e9 + 12 * 28 * 1536 * 4096."""
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    assert model_flops_per_token(config, 1, 4096) == 6 * 1_543_714_304 + 12 * 28 * 1536 * 4096


def test_a_token_costs_the_experts_it_passes_through() -> None:
    config = AutoConfig.for_model("mixtral", num_hidden_layers=2, hidden_size=64, intermediate_size=128)
    shape = model_shape(config.to_dict())
    counted = model_flops_per_token(config, shape.parameters, 128)
    assert 6 * shape.active_parameters < counted < 6 * shape.parameters


def test_an_unknown_family_is_counted_by_its_parameters() -> None:
    config = AutoConfig.for_model("mamba2")
    assert model_flops_per_token(config, 1000, 4096) == 6000


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GH200 480GB", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("AMD Instinct MI300X", 1307.4e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_by_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == (pytest.approx(peak) if peak else None)


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

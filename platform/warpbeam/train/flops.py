"""Floating point operations of training, and what accelerators can do at most: MFU is their quotient."""

from __future__ import annotations

from typing import Any

# Dense bf16 peak without sparsity, FLOP/s, by a part of the device's name; the vendors' data sheets.
PEAK_BF16: dict[str, float] = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "B300": 2250e12,
    "GB200": 2500e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "MI300X": 1307e12,
    "MI325X": 1307e12,
}


def training_flops_per_token(parameters: int, layers: int, hidden: int, seq_len: int) -> float:
    """6N + 12*L*H*s: forward and backward of the matrices and of attention, without recomputation (PaLM, appendix B).

    Args:
        parameters: all of them, tied ones once.
    """
    return 6.0 * parameters + 12.0 * layers * hidden * seq_len


def model_flops_per_token(config: Any, parameters: int, seq_len: int) -> float:
    """The same from a transformers config; the matrices alone where it names no layers."""
    layers = getattr(config, "num_hidden_layers", 0) or 0
    hidden = getattr(config, "hidden_size", 0) or 0
    return training_flops_per_token(parameters, layers, hidden, seq_len)


def peak_flops(device_name: str) -> float | None:
    """Peak of an accelerator by its name; None where it is not known (CPUs among them)."""
    matches = [name for name in PEAK_BF16 if name in device_name]
    return PEAK_BF16[max(matches, key=len)] if matches else None

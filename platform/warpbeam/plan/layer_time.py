"""Seconds of one layer and one micro-batch on one rank, as a sum of classes of operations with a limit each.

- matrix products (m x k by k x n) at the units' peak times an efficiency, longer by what small sizes cost: a product is
  bound by memory where 1/m + 1/n + 1/k is not far below bandwidth / peak (Williams et al. 2009);
- attention's scores and values, causal half with a flash kernel (backward 2.5 x forward, Dao 2023), of that what lies
  in the window where a layer has one; the whole matrix plus its passes through memory without such a kernel;
- elementwise operations (norms, activations, residuals, casts, the fp32 loss) at the memory's bandwidth;
- a fixed time a layer for launches and host work, which hides nothing when the products are small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from warpbeam.plan.hardware import Chip
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.rank_share import RankShare
from warpbeam.plan.setup import Setup
from warpbeam.plan.time_coefficients import Coefficients

_BEST_FLASH: Final = 0.85  # of the peak; no kernel has reached more
_BEST_PRODUCT: Final = 0.95
_FLASH_BACKWARD: Final = 2.5  # times the forward's products: scores are computed again
_UNITS: Final = {"fp32": "fp32", "tf32": "tf32", "fp16": "half", "bf16": "half", "fp8": "fp8", "fp4": "fp4"}
_ELEMENT_BYTES: Final = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
_TILE: Final = 64  # sizes that are no multiple of it leave part of a tile of the matrix units idle
_REFERENCE_WATTS: Final = {  # of the part each generation's efficiency was measured on, for each TFLOP/s of its peak
    "volta": 300 / 125,
    "turing": 280 / 130.5,
    "ampere": 400 / 312,
    "ampere-pcie": 350 / 71,
    "ada": 450 / 165.2,
    "hopper": 700 / 989.4,
    "blackwell": 1000 / 2250,
}


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one rank for one micro-batch.

    Attributes:
        forward, backward: of one layer.
        again: of one layer's forward that backward computes again, by activation checkpointing.
        attention: the part of `forward` in scores and values, which context-parallel rings hide behind.
        head: output projection and loss, forward and backward, on the stage that has them.
    """

    forward: float
    backward: float
    again: float
    attention: float
    head: float


def layer_time(setup: Setup, share: RankShare, chip: Chip, c: Coefficients) -> LayerTime:
    """Predict one layer of `setup` on `chip`. Pure."""
    recipe, stack = setup.recipe, setup.layout.stack
    rates = _Rates(setup, chip, c)
    width = _MlpWidth(setup.shape)
    dense = _products(setup, share, rates, width, c)
    attention, attention_backward = _attention(setup, share, chip, rates, c)
    activations = _activation_bytes(setup, share, width)
    elementwise = _elementwise(setup, share, activations, rates, c)

    launch = c[f"launch.{_fusion(stack)}"]
    if setup.shape.experts > 1:
        launch += c["moe.launch"] + c["moe.expert_launch"] * setup.shape.experts / setup.layout.ep
    forward = dense + attention + elementwise
    backward = 2.0 * dense + attention_backward + 2.0 * elementwise
    if recipe.lora is not None:
        # The base has no gradient of its own; adapters are two thin products beside each.
        backward = dense + attention_backward + 2.0 * elementwise
        adapters = c["lora.adapters"] * activations / rates.bandwidth
        forward, backward = forward + adapters, backward + 2.0 * adapters
        launch *= 1.0 + c["lora.launch"]
        if recipe.lora.base_bits in (4, 8):
            unpacked = setup.shape.layer_parameters / setup.layout.tp * (2.0 + recipe.lora.base_bits / 8.0)
            unpacking = c["lora.unpack"] * unpacked / rates.bandwidth
            forward, backward = forward + unpacking, backward + unpacking
    # Launches run ahead of long kernels and hold up short ones: a smooth maximum of the two.
    forward, backward = _longer(forward, launch), _longer(backward, 2.0 * launch)
    selective = attention + c[f"selective.{_kernel(stack)}"] * (dense + elementwise)
    again = {"none": 0.0, "selective": selective, "full": forward}[recipe.checkpointing]
    return LayerTime(forward, backward, again, attention, _head(setup, share, rates, c))


class _Rates:
    """What this chip's units reach: FLOP/s of products and bytes/s of memory."""

    __slots__ = ("bandwidth", "element", "half", "peak", "peak_half", "reached", "small")

    def __init__(self, setup: Setup, chip: Chip, c: Coefficients) -> None:
        precision = setup.recipe.precision
        used = chip.used_precision(precision)
        self.half = chip.used_precision("bf16" if precision in ("fp8", "fp4") else precision)
        clock = _clock(chip, c)
        aligned = 1.0 if _aligned(setup.shape, setup.layout.tp) else c["matmul.misaligned"]

        def peak(name: str) -> float:
            efficiency = c[f"matmul.{chip.generation}.{_UNITS[name]}"] * clock
            return chip.peak(name) * min(_BEST_PRODUCT, efficiency) * aligned

        self.peak, self.peak_half = peak(used), peak(self.half)
        self.bandwidth = chip.memory_bandwidth * c["memory.bandwidth"]
        self.element = _ELEMENT_BYTES[used]
        self.small = c["matmul.size"]
        self.reached = c[f"attention.{chip.generation}"] * clock  # by a flash kernel, of the peak

    def product(self, m: float, n: float, k: float) -> float:
        """Seconds of m x k by k x n."""
        return 2.0 * m * n * k / self.peak + self.small * self.element * (m * k + n * k + m * n) / self.bandwidth


class _MlpWidth:
    """The MLP's sizes: `ffn` of one expert, or what a dense MLP's parameters come to; `up` matrices before the last."""

    __slots__ = ("active", "ffn", "up")

    def __init__(self, shape: ModelShape) -> None:
        outside = shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
        attention = 2 * shape.hidden_size * (shape.query_size + shape.kv_size)
        self.active = max(0.0, (shape.active_parameters - outside) / shape.layers - attention)
        self.up = 2 if shape.gated else 1
        self.ffn = (
            float(shape.intermediate_size) if shape.experts > 1 else self.active / (self.up + 1) / shape.hidden_size
        )


def _products(setup: Setup, share: RankShare, rates: _Rates, width: _MlpWidth, c: Coefficients) -> float:
    """Of a layer forward: q, k, v and output, and the MLP or the experts that are routed to."""
    shape, layout, tokens = setup.shape, setup.layout, share.tokens
    tp, hidden, query, product = layout.tp, shape.hidden_size, shape.query_size, rates.product
    seconds = product(tokens, (query + 2 * shape.kv_size) / tp, hidden) + product(tokens, hidden, query / tp)
    up, ffn = width.up, width.ffn
    if shape.experts <= 1:
        return seconds + (product(tokens, up * ffn / tp, hidden) + product(tokens, hidden, ffn / tp))
    local = shape.experts / layout.ep
    rows = share.tokens_split * shape.experts_per_token * layout.ep / shape.experts
    grouped = local * (product(rows, up * ffn, hidden) + product(rows, hidden, ffn))
    routed = shape.experts_per_token * (up + 1) * hidden * ffn
    # shared experts, latent projections: whatever else a token passes through
    rest = max(0.0, width.active - routed) / hidden
    grouped *= min(1.0, width.active / routed)
    return seconds + (c["moe.grouped"] * grouped + (product(tokens, rest / tp, hidden) if rest else 0.0))


def _attention(setup: Setup, share: RankShare, chip: Chip, rates: _Rates, c: Coefficients) -> tuple[float, float]:
    """(forward, backward) over the sequence: one rank's share of heads, and of queries with cp."""
    shape, recipe, stack = setup.shape, setup.recipe, setup.layout.stack
    pairs = share.tokens * recipe.seq_len * shape.query_size / setup.layout.tp
    if recipe.eager_attention:
        scores = share.tokens * recipe.seq_len * shape.heads / setup.layout.tp
        rate = rates.peak_half * c["attention.eager"] * (c["matmul.misaligned"] if shape.head_dim % 8 else 1.0)
        forward = 4.0 * pairs / rate + c["attention.passes"] * 2.0 * scores / rates.bandwidth
        return forward, 2.0 * forward
    kernel = "early" if stack == "llm_foundry" else _kernel(stack)
    flash = chip.peak(rates.half) * min(_BEST_FLASH, rates.reached * c[f"attention.{kernel}"])
    flash *= shape.head_dim / (shape.head_dim + c["attention.head_dim"])
    forward = 2.0 * pairs / flash
    if chip.form != "host":  # there a window is a mask on scores that are computed all the same
        forward *= _causal_share(shape, recipe.seq_len)
    return forward, _FLASH_BACKWARD * forward


def _causal_share(shape: ModelShape, seq_len: int) -> float:
    """Pairs of tokens that a mean layer scores, of the causal half: s w - w^2 / 2 of s^2 / 2 within a window w < s."""
    if shape.window is None or shape.window >= seq_len:
        return 1.0
    within = shape.window / seq_len
    return 1.0 - shape.windowed_layers / shape.layers * (1.0 - within * (2.0 - within))


def _activation_bytes(setup: Setup, share: RankShare, width: _MlpWidth) -> float:
    """Of a layer, each written once in half precision: the residual stream with its norms, and the blocks' insides."""
    shape, layout = setup.shape, setup.layout
    split = layout.sequence_parallel or layout.tp == 1
    stream = (share.tokens_split if split else share.tokens) * shape.hidden_size * 8
    ffn = width.ffn * shape.experts_per_token if shape.experts > 1 else width.ffn
    inner = share.tokens / layout.tp * (shape.query_size + 2 * shape.kv_size + (width.up + 1) * ffn)
    return 2.0 * (stream + inner)


def _elementwise(setup: Setup, share: RankShare, activations: float, rates: _Rates, c: Coefficients) -> float:
    """Of a layer forward, at the memory's bandwidth."""
    passes = c[f"elementwise.{_fusion(setup.layout.stack)}"]
    if rates.element < 2.0:
        passes += c["elementwise.cast"]
    seconds = passes * activations / rates.bandwidth
    if setup.shape.experts > 1:
        routed = share.tokens_split * setup.shape.hidden_size * setup.shape.experts_per_token
        seconds += c["moe.permute"] * 2.0 * routed / rates.bandwidth
    return seconds


def _head(setup: Setup, share: RankShare, rates: _Rates, c: Coefficients) -> float:
    """Output projection (always in half precision or better) and the passes of the loss over fp32 logits."""
    tokens, hidden, vocab = share.tokens, setup.shape.hidden_size, setup.shape.vocab_size / setup.layout.tp
    moved = tokens * hidden + vocab * hidden + tokens * vocab
    once = 2.0 * tokens * vocab * hidden / rates.peak_half + rates.small * 2.0 * moved / rates.bandwidth
    products = (2.0 if setup.recipe.lora is not None else 3.0) * once
    return products + c[f"head.{_kernel(setup.layout.stack)}"] * 4.0 * tokens * vocab / rates.bandwidth


def _aligned(shape: ModelShape, tp: int) -> bool:
    """Whether a rank's share of the layer's products fills whole tiles."""
    return not (shape.query_size // tp % _TILE or shape.hidden_size % _TILE or shape.intermediate_size // tp % _TILE)


def _longer(work: float, launch: float) -> float:
    return math.cbrt(work**3 + launch**3)


def _clock(chip: Chip, c: Coefficients) -> float:
    """Clock under load against the generation's reference: a module that may draw less for each FLOP/s runs slower."""
    if not chip.power_w or chip.generation not in _REFERENCE_WATTS:
        return 1.0
    watts = chip.power_w / (max(chip.peak_bf16, chip.peak_fp16) / 1e12)
    return math.pow(watts / _REFERENCE_WATTS[chip.generation], c["power.exponent"])


def _kernel(stack: str) -> str:
    """Whose attention kernels, loss and selective recompute: NVIDIA's, or PyTorch's and what builds on it."""
    if stack in ("megatron", "nanotron", "internevo", "megatron_deepspeed"):
        return "megatron"
    return "maxtext" if stack == "maxtext" else "fsdp"


def _fusion(stack: str) -> str:
    """How far elementwise operations are fused: by hand or compiler, or not at all."""
    return "eager" if stack in ("hf", "torchtune", "litgpt", "deepspeed") else "fused"

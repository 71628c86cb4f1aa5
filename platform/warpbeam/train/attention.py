"""Attention on packed rows: examples that share a row must not see each other, and dense masks must not eat the gain.

Two kernels, both told where examples begin and neither needing a mask: `varlen` (flash attention over all examples of
a micro-batch at once; CUDA, bf16) and `sdpa-per-example` (one causal call for each example; anywhere). A model that
cannot be given a kernel keeps its own, and transformers' block-diagonal mask from restarting positions: `block-mask`.
Which one runs is logged and recorded with the reason, and `leak` proves on the model itself that nothing crosses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from warpbeam.errors import UserError
from warpbeam.train.forward import Forward, logits_of
from warpbeam.train.kernels import Unsupported, Varlen, per_example_attention, varlen_attention

Kernel = Literal["varlen", "sdpa-per-example", "block-mask"]
Inputs = dict[str, Any]

VARLEN_MAX_HEAD_DIM = 256
_LENGTHS_MULTIPLE = 64  # pads the list of examples, so that compiled layers see few different shapes
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packing:
    """How a model's attention keeps examples apart, and why so."""

    kernel: Kernel
    reason: str

    def inputs(self, lengths: Sequence[int], seq_len: int, device: torch.device) -> Inputs:
        """Arguments of the model's forward for one micro-batch.

        Args:
            lengths: tokens of each example, in order, row after row; they add up to rows * seq_len.
        """
        if self.kernel == "block-mask":
            return {}
        if self.kernel == "sdpa-per-example":
            return {"example_lengths": tuple(lengths)}
        missing = -len(lengths) % _LENGTHS_MULTIPLE
        ends = torch.tensor([0, *lengths, *[0] * missing], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        ends = ends.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ends
        return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": seq_len, "max_length_k": seq_len}


def choose(model: torch.nn.Module, device: torch.device, precision: str) -> Packing:
    """Give `model` the best kernel that it and the device allow. Nothing falls back without a word."""
    if not hasattr(model, "set_attn_implementation"):
        return _chosen("block-mask", "not a transformers model: it must keep examples apart by position_ids itself")
    asks = _asks_for(model.config)
    if asks:
        return _chosen("block-mask", f"the model's attention has {asks}")
    obstacle = _varlen_obstacle(model.config, device, precision)
    kernel: Kernel = "sdpa-per-example" if obstacle else "varlen"
    try:
        _give(model, kernel)
    except (ValueError, ImportError, AttributeError) as error:
        return _chosen("block-mask", f"the model takes no kernel: {str(error).splitlines()[0]}")
    return _chosen(kernel, obstacle or "flash attention over all examples at once")


def fall_back(model: torch.nn.Module, error: Unsupported) -> Packing:
    """The model's own attention after all, because a kernel met something that it does not do."""
    model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")  # type: ignore[operator]
    return _chosen("block-mask", str(error))


def _chosen(kernel: Kernel, reason: str) -> Packing:
    log.info("attention: %s (%s)", kernel, reason)
    return Packing(kernel, reason)


def _asks_for(config: Any) -> str | None:
    """What the kernels do not do, as far as the configuration tells."""
    if getattr(config, "attn_logit_softcapping", None):
        return "a soft cap on its logits"
    if getattr(config, "model_type", "") in {"gpt_oss", "bloom", "mpt", "falcon_alibi"}:
        return "sinks or position biases"
    return None


def _varlen_obstacle(config: Any, device: torch.device, precision: str) -> str | None:
    """Why flash attention over packed examples cannot be used; None when it can."""
    if device.type != "cuda":
        return f"{device.type}: flash attention over packed examples is for CUDA"
    if precision != "bf16":
        return f"{precision}: flash attention takes bf16"
    heads = getattr(config, "num_attention_heads", 1)
    head_dim = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
    if head_dim > VARLEN_MAX_HEAD_DIM:
        return f"head size {head_dim}: flash attention takes at most {VARLEN_MAX_HEAD_DIM}"
    if getattr(config, "attention_dropout", 0.0) or getattr(config, "attn_pdrop", 0.0):
        return "attention dropout: torch's varlen_attn has none"
    try:
        kernel = Varlen.installed()
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn (2.11 or later)"
    return _varlen_probe(kernel, device)


def _varlen_probe(kernel: Varlen, device: torch.device) -> str | None:
    """Run the kernel on a few numbers, forward and backward, against plain attention."""
    generator = torch.Generator(device).manual_seed(0)
    lengths, heads = [5, 11], (4, 2, 2)
    drawn = [torch.randn(1, h, 16, 16, device=device, generator=generator) for h in heads]
    leaves = [tensor.bfloat16().requires_grad_() for tensor in drawn]
    ends = torch.tensor([0, 5, 16], dtype=torch.int32, device=device)
    try:
        ours, _ = varlen_attention(None, *leaves, kernel=kernel, cu_seq_lens_q=ends, max_length_q=11)
        grads = torch.autograd.grad(ours.float().square().sum(), leaves)
    except (RuntimeError, TypeError, NotImplementedError, Unsupported) as error:
        return f"varlen_attn does not run here: {str(error).splitlines()[0][:200]}"
    plain, _ = per_example_attention(None, *leaves, example_lengths=lengths)
    wanted = torch.autograd.grad(plain.float().square().sum(), leaves)
    pairs = [(ours, plain), *zip(grads, wanted, strict=True)]
    worst = max(float((a.float() - b.float()).abs().max() / (b.float().abs().max() + 1e-6)) for a, b in pairs)
    return None if worst < 0.05 else f"varlen_attn differs from plain attention here by {worst:.1%}"


def _give(model: Any, kernel: Kernel) -> None:
    from transformers import AttentionInterface

    function = per_example_attention if kernel != "varlen" else partial(varlen_attention, kernel=Varlen.installed())
    AttentionInterface.register(f"warpbeam-{kernel}", function)
    model.set_attn_implementation(f"warpbeam-{kernel}")
    if model.config._attn_implementation != f"warpbeam-{kernel}":
        raise ValueError(f"{type(model).__name__} kept {model.config._attn_implementation}")


def prove(
    model: torch.nn.Module, module: torch.nn.Module, packing: Packing, vocabulary: int, device: torch.device
) -> tuple[Packing, float]:
    """Run the leak test, with the model's own attention where the kernel turns out not to fit.

    Args:
        model: the bare model; `module` is what is called for a forward.

    Returns:
        The packing that holds, and what `leak` measured for it.
    """
    forward = Forward(model)
    try:
        return packing, leak(forward, module, packing, vocabulary, device)
    except Unsupported as error:
        packing = fall_back(model, error)
        return packing, leak(forward, module, packing, vocabulary, device)


def leak(forward: Forward, module: torch.nn.Module, packing: Packing, vocabulary: int, device: torch.device) -> float:
    """How much an example's logits change with its neighbour in the row and with its own end, relative to their size.

    0 is right: an example sees only itself, and a token only what comes before it.
    Collective where the model is sharded; call it without gradients. Draws no random numbers.
    """
    lengths = [7, 9]
    length, ids = sum(lengths), max(2, min(vocabulary, 64))
    first = torch.arange(length, device=device) % ids
    second = first.clone()
    for changed in (slice(0, lengths[0]), slice(length - 1, length)):
        second[changed] = (second[changed] + 1) % ids
    places = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    inputs = {"position_ids": places, "use_cache": False, **packing.inputs(lengths, length, device)}
    was_training = module.training
    module.eval()
    try:
        rows = ({"input_ids": row[None], **inputs} for row in (first, second))
        one, two = (logits_of(forward(module, row))[0, lengths[0] : -1].float() for row in rows)
    finally:
        module.train(was_training)
    return float((one - two).abs().max() / (one.abs().max() + 1e-9))


def refuse_leak(model: torch.nn.Module, packing: Packing, amount: float) -> None:
    """Raise when packed examples of this model see each other."""
    if amount <= 1e-4:
        return
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise UserError(
        f"{family} models cannot be trained on packed rows: an example sees its neighbour, or a token what follows it",
        why=f"changing what an example must not see changed its logits by {amount:.1e} of their size "
        f"({packing.kernel}: {packing.reason})",
        fix="set `packing: false` under data:, or take a causal language model",
        reason="packing_leaks",
    )

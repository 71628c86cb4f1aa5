"""The attention kernels of packed rows, as functions of transformers' attention interface.

Both get query, key and value as [rows, heads, seq_len, head_dim] and no mask, and are told where examples begin by
arguments that travel through the model's forward. What they would have to ignore, they refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


class Unsupported(Exception):
    """A kernel does not do what this model's attention asks for."""


def per_example_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    example_lengths: Sequence[int] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each example with itself. Query, key, value [rows, heads, seq_len, head_dim].

    The cost is that of the examples, not of the rows' squares: at 1024 tokens with examples of 150 a fifth.
    """
    if example_lengths is None:
        raise _not_told(module)
    _refuse(module, others, attention_mask)
    rows, heads, seq_len, _ = query.shape
    # [rows * seq_len, heads, head_dim] without a copy: projections come out that way.
    flat = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    parts = [torch.split(tensor, list(example_lengths)) for tensor in flat]
    outputs = []
    for q, k, v in zip(*parts, strict=True):
        mask = _band(len(q), sliding_window, q.device)
        output = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=key.shape[1] != heads,
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs).view(rows, seq_len, heads, value.shape[-1]), None


def _band(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Causal mask of a sliding window; None where the window holds the whole example."""
    if window is None or length <= window:
        return None
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)[None, :]
    return (distance >= 0) & (distance < window)


def varlen_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    kernel: Varlen,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each example with itself, in one kernel. Shapes as in `per_example_attention`."""
    if cu_seq_lens_q is None:
        raise _not_told(module)
    if dropout:
        raise Unsupported("attention dropout: torch's varlen_attn has none")
    _refuse(module, others, attention_mask)
    rows, heads, seq_len, _ = query.shape
    q, k, v = (t.transpose(1, 2).flatten(0, 1).to(torch.bfloat16) for t in (query, key, value))
    options = kernel.options(sliding_window, grouped=key.shape[1] != heads)
    ends, longest = cu_seq_lens_q, max_length_q
    output = kernel.function(q, k, v, ends, ends, longest, longest, scale=scaling, **options)
    return output.view(rows, seq_len, heads, value.shape[-1]), None


@dataclass(frozen=True)
class Varlen:
    """torch's `varlen_attn` and the names of its parameters, which differ from release to release."""

    function: Callable[..., torch.Tensor]
    takes: frozenset[str]

    @classmethod
    def installed(cls) -> Varlen:
        """Of the torch that runs; ImportError before 2.10."""
        from torch.nn.attention.varlen import varlen_attn

        return cls(varlen_attn, frozenset(inspect.signature(varlen_attn).parameters))  # type: ignore[arg-type]

    def options(self, window: int | None, *, grouped: bool) -> dict[str, Any]:
        """torch 2.10 says `is_causal`, later ones a window; grouped heads must be announced where they are checked."""
        options: dict[str, Any] = {}
        if "window_size" in self.takes:
            options["window_size"] = (-1 if window is None else window - 1, 0)
        elif window is None:
            options["is_causal"] = True
        else:
            raise Unsupported("a sliding window: this torch's varlen_attn has none")
        if grouped and "enable_gqa" in self.takes:
            options["enable_gqa"] = True
        return options


def _not_told(module: torch.nn.Module) -> Unsupported:
    return Unsupported(
        f"{type(module).__name__} was not told where the examples of a row begin: a loop of its own calls "
        "`model(**batch.inputs)`; else the model does not hand its arguments on to the kernel"
    )


def _refuse(module: Any, others: dict[str, Any], mask: torch.Tensor | None) -> None:
    """What would silently change the result if it were ignored."""
    causal = others.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise Unsupported("the model's attention is not causal")
    if mask is not None:
        raise Unsupported("the model makes a mask of its own")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if others.get(name) is not None:
            raise Unsupported(f"the model's attention has {name}")

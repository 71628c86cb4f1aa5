"""Floating point operations of training, one token at a time: the one place where MFU's numerator is written down.

A parameter of a matrix costs two operations forward and four backward, two of them for the weight's own gradient, which
a frozen weight does not have. Recomputation is not counted: it is work, but no progress (PaLM, appendix B).
"""

from __future__ import annotations

from warpbeam.plan.model_shape import ModelShape


def flops_per_token_6n(shape: ModelShape, *, frozen: bool = False) -> int:
    """6N (4N where the weights are frozen under adapters); N is what one token passes through.

    N counts embeddings, as published MFU figures do. A tied table's output product is real work; where the input has a
    table of its own, 6N counts that too.
    """
    return (4 if frozen else 6) * shape.active_parameters


def flops_per_token(shape: ModelShape, seq_len: int, *, frozen: bool = False) -> int:
    """6N + 12 L H s, with attention over `seq_len` tokens or a layer's window; 4N + 8 L H s under adapters, whose own
    work is left out."""
    attention = attention_flops_per_token(shape, seq_len)
    return flops_per_token_6n(shape, frozen=frozen) + (attention * 2 // 3 if frozen else attention)


def matrix_flops_per_token(shape: ModelShape) -> int:
    """What the matrices really cost a token: 6N without the tables it only looks itself up in, so a tied embedding and
    a separate one cost the same. (Norms and biases, well under a hundredth, are counted along.)"""
    looked_up = 0 if shape.tied else shape.vocab_size * shape.hidden_size
    if shape.learned_positions:
        looked_up += (shape.positions or 0) * shape.hidden_size
    return 6 * (shape.active_parameters - looked_up)


def attention_flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """12 L H s (H = heads x head_dim): scores and values over `seq_len` tokens, forward and backward.

    The causal half is not taken off, as published MFU figures do not. In a layer with a sliding window, s is at
    most the window: a score outside it is not computed.
    """
    within = seq_len if shape.window is None else min(seq_len, shape.window)
    seen = shape.windowed_layers * within + (shape.layers - shape.windowed_layers) * seq_len
    return 12 * shape.query_size * seen

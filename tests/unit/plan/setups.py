"""Setups and machines to predict."""

from __future__ import annotations

from typing import Any

from warpbeam.plan.answer import Question
from warpbeam.plan.layouts import Space
from warpbeam.plan.machine import machine_from_words
from warpbeam.plan.model_shape import model_shape
from warpbeam.plan.setup import Layout, Recipe, Setup

LLAMA_8B = model_shape(
    {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
)
LLAMA_70B = model_shape(
    {"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672}
)


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"seq_len": 4096, "micro_batch": 1, "global_batch": 256} | changes)


def setup(shape: Any = LLAMA_8B, *, accelerators: int = 16, recipe_: Recipe | None = None, **layout: Any) -> Setup:
    chosen = {"accelerators": accelerators, "per_node": min(8, accelerators), "sharding": "zero3"} | layout
    return Setup(shape=shape, layout=Layout(**chosen), recipe=recipe_ or recipe())


def question(words: str = "16xH100", shape: Any = LLAMA_8B, space: Space | None = None, **recipe_: Any) -> Question:
    return Question(shape=shape, recipe=recipe(**recipe_), machine=machine_from_words(words), space=space or Space())

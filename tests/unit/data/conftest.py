"""A tiny real tokenizer, trained once a session, for everything that needs token ids."""

from __future__ import annotations

from typing import Any

import pytest

from warpbeam.data.tokenizer import train_tokenizer

TEXTS = [
    "The loom's warp beam holds every thread at equal tension.",
    "How do I reverse a list in Python? Use reversed() or list.reverse().",
    "def add(a, b):\n    return a + b\n",
    "naïve café, 日本語, Привет, emoji 🙂 and 12345 numbers",
]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Byte-level BPE of 400 entries with ChatML. Do not change it: copy.deepcopy first."""
    return train_tokenizer(TEXTS * 20, vocab_size=400)

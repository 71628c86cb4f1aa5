"""A tiny real tokenizer for everything that trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warpbeam.data.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Byte-level BPE of 320 entries with ChatML. Do not change it."""
    return train_tokenizer(["a warp beam holds every thread at equal tension"] * 20, vocab_size=320)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)

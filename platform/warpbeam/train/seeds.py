"""Random numbers: the same model on every rank, other dropout on each."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed every generator of this process; CUDA's with torch's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_rank(seed: int, rank: int) -> None:
    """From the first step on, ranks draw different numbers."""
    seed_all(seed * 1_000_003 + 7919 * (rank + 1))

"""From a reader's rows to tensors: positions, examples and weights survive."""

from __future__ import annotations

import numpy as np
import torch

from warpbeam.data.reader import MicroBatch
from warpbeam.train.attention import Packing
from warpbeam.train.batch import make_batch


def rows(loss_tokens: int = 6) -> MicroBatch:
    positions = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])
    return MicroBatch(
        input_ids=np.arange(12).reshape(2, 6),
        labels=np.full((2, 6), -100),
        position_ids=positions,
        segment_ids=np.array([[0, 0, 0, 1, 1, 2], [0] * 6], np.int32),
        sample_ids=["s0/000000:1", "pad"],
        step=4,
        last=True,
        global_loss_tokens=loss_tokens,
    )


def test_examples_are_found_by_where_positions_restart() -> None:
    batch = make_batch(rows(), Packing("sdpa-per-example", "test"), torch.device("cpu"))
    assert batch.inputs["example_lengths"] == (3, 2, 1, 6)
    assert batch.inputs["use_cache"] is False
    assert batch["position_ids"].tolist() == rows()["position_ids"].tolist()
    assert batch.sample_ids == ["s0/000000:1", "pad"]


def test_steps_count_from_one_and_nothing_divides_by_zero() -> None:
    batch = make_batch(rows(loss_tokens=0), None, torch.device("cpu"))
    assert batch.step == 5
    assert batch.global_loss_tokens == 1
    assert set(batch.inputs) == {"input_ids", "position_ids"}

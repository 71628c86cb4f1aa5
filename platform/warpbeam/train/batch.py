"""A micro-batch as a loop gets it: tensors on the rank's device, and the forward's arguments ready made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from warpbeam.data.reader import MicroBatch
    from warpbeam.train.attention import Packing


@dataclass(frozen=True)
class Batch:
    """Rows of one forward pass; tensors are [rows, seq_len].

    Attributes:
        labels: aligned with input_ids (the model shifts); -100 carries no loss.
        position_ids: restart with each example.
        segment_ids: number of the example in its row.
        sample_ids: one a row; "pad" for a row that weighs nothing.
        step: the optimizer step that this is part of, from 1.
        last: ends the accumulation of its step.
        global_loss_tokens: of the whole global batch, over all ranks and micro-batches; at least 1, to divide by.
        inputs: what a transformers model is called with: `model(**batch.inputs)`.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    segment_ids: torch.Tensor
    sample_ids: list[str]
    step: int
    last: bool
    global_loss_tokens: int
    inputs: dict[str, Any] = field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def make_batch(rows: MicroBatch, packing: Packing | None, device: torch.device) -> Batch:
    """Move a reader's rows to the device. `packing`: how the model keeps examples apart; None: not our model."""
    names = ("input_ids", "labels", "position_ids", "segment_ids")
    tensors = {name: _to_device(rows[name], device) for name in names}  # type: ignore[literal-required]
    inputs: dict[str, Any] = {"input_ids": tensors["input_ids"], "position_ids": tensors["position_ids"]}
    if packing is not None:
        inputs |= {"use_cache": False, **packing.inputs(_lengths(rows), rows["input_ids"].shape[1], device)}
    return Batch(
        **tensors,
        sample_ids=rows["sample_ids"],
        step=rows["step"] + 1,
        last=rows["last"],
        global_loss_tokens=max(1, rows["global_loss_tokens"]),
        inputs=inputs,
    )


def _lengths(rows: MicroBatch) -> list[int]:
    """Tokens of each example, row after row."""
    positions = rows["position_ids"].ravel()
    starts = np.flatnonzero(positions == 0)
    return np.diff(starts, append=positions.size).tolist()  # type: ignore[no-any-return]


def _to_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

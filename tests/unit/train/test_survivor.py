"""After a failure a rank saves alone what is whole and exact, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train.making import context, sink_of
from tests.unit.train.test_context import numbers, trained
from warpbeam.checkpoint.log import RunLog, live_commits
from warpbeam.errors import InfraError
from warpbeam.train.batch import Batch
from warpbeam.train.callbacks.base import Callback
from warpbeam.train.context import Context
from warpbeam.train.recipes import lm
from warpbeam.train.survival import Stage, prospect

CALM = {"checkpoint__every_steps": 100, "model__config__attention_dropout": 0.0}


class Broken(Exception):
    """A bug of a user's, or the echo of another rank's end."""


def failing(folder: Path, tokenizer: Any, error: Exception, *, at: int = 5, **options: Any) -> Context:
    """A run whose loss fails in step `at`, after some of its micro-batches."""
    ctx = context(folder, tokenizer, **{**CALM, **options})
    plain = ctx.loss

    def loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if batch.step == at and batch.last:
            raise error
        return plain(module, batch)

    ctx.loss = loss  # type: ignore[method-assign]
    return ended(ctx, lm.train, type(error))


def ended(ctx: Context, loop: Callable[[Context], None], kind: type[Exception]) -> Context:
    with pytest.raises(kind) as caught:
        loop(ctx)
    ctx.save_alone(caught.value)
    return ctx


def committed(ctx: Context) -> list[int]:
    return [commit.step or 0 for commit in live_commits(RunLog(ctx.store, ctx.job.team, ctx.job.name).read())]


def test_the_step_before_the_failure_is_saved_and_resumed_bitwise(tmp_path: Path, tokenizer: Any) -> None:
    undisturbed = numbers(trained(tmp_path / "whole", tokenizer, **CALM))
    first = failing(tmp_path / "cut", tokenizer, Broken("connection closed by peer"))
    assert committed(first) == [4]
    assert prospect().stage is Stage.SAVED
    second = trained(tmp_path / "cut", tokenizer, "0002-b", **CALM)
    assert sorted(numbers(second)) == [5, 6]
    assert numbers(first) | numbers(second) == undisturbed


def test_who_draws_random_numbers_saves_nothing(tmp_path: Path, tokenizer: Any) -> None:
    """The dead rank's random states are not known."""
    assert committed(failing(tmp_path, tokenizer, Broken(), model__config__attention_dropout=0.1)) == []
    assert prospect().stage is Stage.UNABLE


def test_our_own_errors_save_nothing(tmp_path: Path, tokenizer: Any) -> None:
    assert committed(failing(tmp_path, tokenizer, InfraError("the store is gone"))) == []


def test_what_is_committed_is_not_saved_again(tmp_path: Path, tokenizer: Any) -> None:
    assert committed(failing(tmp_path, tokenizer, Broken(), at=4, checkpoint__every_steps=3)) == [3]


def test_the_first_step_leaves_nothing_to_save(tmp_path: Path, tokenizer: Any) -> None:
    assert committed(failing(tmp_path, tokenizer, Broken(), at=1)) == []


def own_loop(ctx: Context, *, before: int = 0, after: int = 0) -> None:
    """Fails in the forward pass of step `before`, or between the update of step `after` and its end."""
    strategy = ctx.shard(ctx.build_model())
    for batch in ctx.batches():
        if batch.step == before:
            raise Broken
        strategy.backward(ctx.loss(strategy.module, batch) / batch.global_loss_tokens)
        if batch.last:
            strategy.step(ctx.lr)
            if batch.step == after:
                raise Broken
            ctx.step(loss=1.0)


def test_an_update_whose_step_is_not_over_is_not_saved(tmp_path: Path, tokenizer: Any) -> None:
    """All ranks have made it, but its row is not agreed on."""
    assert committed(ended(context(tmp_path, tokenizer, **CALM), partial(own_loop, after=3), Broken)) == []


def test_a_step_that_fails_while_it_is_ended_is_not_saved(tmp_path: Path, tokenizer: Any) -> None:
    class Breaks(Callback):
        def on_step(self, ctx: Context, row: Any) -> None:
            if ctx.step_done == 3:
                raise Broken

    ctx = context(tmp_path, tokenizer, callbacks=[Breaks()], **CALM)
    assert committed(ended(ctx, lm.train, Broken)) == []


def test_one_of_several_survivors_saves(tmp_path: Path, tokenizer: Any) -> None:
    ctx = context(tmp_path, tokenizer, **CALM)
    ctx.store.put(f"teams/default/runs/made/record/{ctx.attempt}/survivor.json", b"rank-7")
    assert committed(ended(ctx, partial(own_loop, before=3), Broken)) == []
    assert prospect().stage is Stage.UNABLE


def test_the_checkpoint_says_who_made_it(tmp_path: Path, tokenizer: Any) -> None:
    ctx = failing(tmp_path, tokenizer, Broken())
    (event,) = [event for event in sink_of(ctx).events if event["kind"] == "checkpoint"]
    assert (event["step"], event["alone"]) == (4, 0)

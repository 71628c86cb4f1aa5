"""The Context's promises, in one process: order, exact resume, evaluation, stop, and what it refuses."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.train.making import context, sink_of
from warpbeam.checkpoint.log import RunLog, live_commits
from warpbeam.data.reader import batch_ids
from warpbeam.errors import InfraError, RunFailed, UserError
from warpbeam.plan.schedule import lr_of
from warpbeam.train.batch import Batch
from warpbeam.train.callbacks.base import Callback
from warpbeam.train.context import Context
from warpbeam.train.recipes import lm

EXACT = ("loss_metrics/global_avg_loss", "grad_norm", "lr", "loss_tokens", "n_tokens_seen")


class Stop(Callback):
    """Asks for an end after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step(self, ctx: Context, row: Any) -> None:
        if ctx.step_done == self.after - 1:  # the next step's end agrees on it
            sink_of(ctx).stop_requested = {"by": "test"}


def numbers(ctx: Context) -> dict[int, tuple[Any, ...]]:
    return {row["step"]: tuple(row[name] for name in EXACT) for row in sink_of(ctx).rows if EXACT[0] in row}


def trained(folder: Path, tokenizer: Any, attempt: str = "0001-a", **options: Any) -> Context:
    ctx = context(folder, tokenizer, attempt, **options)
    lm.train(ctx)
    ctx.finish()
    return ctx


def sharded(folder: Path, tokenizer: Any) -> Context:
    ctx = context(folder, tokenizer)
    ctx.shard(ctx.build_model())
    return ctx


def loop(ctx: Context, body: Callable[[Batch], Any]) -> None:
    for batch in ctx.batches():
        body(batch)


def test_stopped_and_resumed_equals_undisturbed_bitwise(tmp_path: Path, tokenizer: Any) -> None:
    undisturbed = numbers(trained(tmp_path / "whole", tokenizer))
    first = trained(tmp_path / "cut", tokenizer, callbacks=[Stop(after=2)])
    second = trained(tmp_path / "cut", tokenizer, "0002-b")
    assert first.finish() == "stopped"
    assert sorted(numbers(first)) == [1, 2]
    assert sorted(numbers(second)) == [3, 4, 5, 6]
    assert numbers(first) | numbers(second) == undisturbed


def test_draws_in_callbacks_do_not_disturb_a_resume(tmp_path: Path, tokenizer: Any) -> None:
    class Draws(Callback):
        def draw(self, *_: Any) -> None:
            random.random(), np.random.rand(), torch.rand(1)

        on_start = on_checkpoint = on_eval = draw

    undisturbed = numbers(trained(tmp_path / "whole", tokenizer, callbacks=[Draws()], evaluated=True))
    first = trained(tmp_path / "cut", tokenizer, callbacks=[Draws(), Stop(after=3)], evaluated=True)
    second = trained(tmp_path / "cut", tokenizer, "0002-b", callbacks=[Draws()], evaluated=True)
    assert numbers(first) | numbers(second) == undisturbed


def test_a_finished_run_does_nothing_more(tmp_path: Path, tokenizer: Any) -> None:
    trained(tmp_path, tokenizer)
    again = trained(tmp_path, tokenizer, "0002-b")
    assert numbers(again) == {}
    assert again.step_done == 6
    assert again.finish() == "done"


def test_lr_applied_is_the_schedules(tmp_path: Path, tokenizer: Any) -> None:
    ctx = context(tmp_path, tokenizer, train__warmup=2, train__schedule="cosine")
    strategy = ctx.shard(ctx.build_model())
    applied: dict[int, float] = {}
    for batch in ctx.batches():
        with strategy.micro_step(last=batch.last):
            strategy.backward(ctx.loss(strategy.module, batch) / batch.global_loss_tokens)
        if batch.last:
            norm = strategy.step(ctx.lr)
            applied[batch.step] = strategy._optimizer.param_groups[0]["lr"]  # type: ignore[attr-defined]
            ctx.step(loss=0.0, grad_norm=norm)
    assert applied == {step: lr_of(ctx.job.train, step, 6) for step in range(1, 7)}
    assert {row["step"]: row["lr"] for row in sink_of(ctx).rows} == applied


def test_evaluates_before_the_first_step_at_checkpoints_and_at_the_end(tmp_path: Path, tokenizer: Any) -> None:
    ctx = trained(tmp_path, tokenizer, evaluated=True)
    held_out = [row for row in sink_of(ctx).rows if "validation_metrics/loss" in row]
    assert [row["step"] for row in held_out] == [0, 3, 6]
    assert len({row["validation_metrics/loss_tokens"] for row in held_out}) == 1
    assert held_out[-1]["validation_metrics/loss"] < held_out[0]["validation_metrics/loss"]
    commits = [entry for entry in RunLog(ctx.store, "default", "made").read() if entry.kind == "commit"]
    assert [entry.extra["eval_loss"] for entry in commits] == [row["validation_metrics/loss"] for row in held_out[1:]]


@pytest.mark.parametrize("every", [1, 4])
def test_eval_every(tmp_path: Path, tokenizer: Any, every: int) -> None:
    ctx = trained(tmp_path, tokenizer, evaluated=True, train__eval_every=every)
    steps = [row["step"] for row in sink_of(ctx).rows if "validation_metrics/loss" in row]
    assert steps == sorted({0, *range(every, 7, every), 6})


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_held_out_loss_does_not_depend_on_the_micro_batch(tmp_path: Path, tokenizer: Any, micro_batch: int) -> None:
    reference = context(tmp_path / "a", tokenizer, evaluated=True, train__max_steps=1)
    lm.train(reference)
    other = context(tmp_path / "b", tokenizer, evaluated=True, train__max_steps=1, parallelism__micro_batch=micro_batch)
    lm.train(other)
    assert reference.first_eval is not None
    assert other.first_eval is not None
    assert other.first_eval.tokens == reference.first_eval.tokens
    assert other.first_eval.loss == pytest.approx(reference.first_eval.loss, rel=1e-6)


def test_a_stop_is_committed_and_said(tmp_path: Path, tokenizer: Any) -> None:
    ctx = trained(tmp_path, tokenizer, callbacks=[Stop(after=2)])
    commit = RunLog(ctx.store, "default", "made").newest_commit()
    assert commit is not None
    assert commit.step == 2
    assert any(event["kind"] == "stopping" for event in sink_of(ctx).events)


def test_a_store_that_cannot_remove_old_checkpoints_does_not_end_the_run(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise InfraError("the bucket allows no deletion")

    monkeypatch.setattr("warpbeam.train.saving.retain", refuse)
    ctx = trained(tmp_path, tokenizer)
    assert [entry.step for entry in live_commits(RunLog(ctx.store, "default", "made").read())] == [3, 6]
    told = [event["what"] for event in sink_of(ctx).events if event["kind"] == "tidy_failed"]
    assert told == ["the bucket allows no deletion"] * 2


def test_loss_that_is_not_finite_ends_the_run_and_commits_nothing(tmp_path: Path, tokenizer: Any) -> None:
    ctx = sharded(tmp_path, tokenizer)
    with pytest.raises(RunFailed, match="step 1 is not a finite number") as raised:
        loop(ctx, lambda batch: batch.last and ctx.step(loss=torch.tensor(float("nan"))))
    assert raised.value.reason == "not_finite"
    assert RunLog(ctx.store, "default", "made").newest_commit() is None


def test_norm_that_is_not_finite_ends_the_run(tmp_path: Path, tokenizer: Any) -> None:
    ctx = sharded(tmp_path, tokenizer)
    with pytest.raises(RunFailed, match="gradient norm"):
        loop(ctx, lambda batch: batch.last and ctx.step(loss=1.0, grad_norm=float("inf")))


def test_batches_before_the_model_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="before the model"):
        next(iter(context(tmp_path, tokenizer).batches()))


def test_step_in_the_middle_of_an_accumulation_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    ctx = sharded(tmp_path, tokenizer)
    with pytest.raises(UserError, match="middle of an accumulation"):
        loop(ctx, lambda batch: ctx.step(loss=1.0))


def test_a_step_that_is_not_ended_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    ctx = sharded(tmp_path, tokenizer)
    with pytest.raises(UserError, match="did not end step 1"):
        loop(ctx, lambda batch: None)


def test_optimizer_made_before_sharding_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    ctx = context(tmp_path, tokenizer)
    model = ctx.build_model()
    with pytest.raises(UserError, match="not the model's"):
        ctx.track(model=model, optimizer=torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()))


def test_own_loop_resumes_bitwise(tmp_path: Path, tokenizer: Any) -> None:
    def own_loop(ctx: Context) -> None:
        model = ctx.build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ctx.track(model=model, optimizer=optimizer)
        share = torch.zeros(())
        for batch in ctx.batches():
            loss = ctx.loss(model, batch) / batch.global_loss_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            share += loss.detach()
            if batch.last:
                optimizer.step()
                optimizer.zero_grad()
                ctx.step(loss=share, grad_norm=0.0)
                share.zero_()

    whole, first = context(tmp_path / "whole", tokenizer), context(tmp_path / "cut", tokenizer, callbacks=[Stop(2)])
    own_loop(whole)
    own_loop(first)
    first.finish()
    second = context(tmp_path / "cut", tokenizer, "0002-b")
    own_loop(second)
    assert numbers(first) | numbers(second) == numbers(whole)


def test_model_files_are_written_for_an_export(tmp_path: Path, tokenizer: Any) -> None:
    ctx = context(tmp_path, tokenizer)
    ctx.shard(ctx.build_model())
    folder = tmp_path / "store/teams/default/runs/made/model"
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"} <= names
    from transformers import AutoConfig, GenerationConfig

    assert AutoConfig.from_pretrained(folder).architectures == ["Qwen2ForCausalLM"]
    assert tokenizer.eos_token_id in GenerationConfig.from_pretrained(folder).eos_token_id


def test_row_holds_torchtitans_names(tmp_path: Path, tokenizer: Any) -> None:
    ctx = trained(tmp_path, tokenizer)
    row = sink_of(ctx).rows[-1]
    assert {
        "step",
        "attempt",
        "loss_metrics/global_avg_loss",
        "grad_norm",
        "lr",
        "throughput(tps)",
        "tflops",
        "time_metrics/end_to_end(s)",
        "time_metrics/data_loading(s)",
        "memory/max_rss(GiB)",
        "n_tokens_seen",
        "loss_tokens",
        "batch_crc",
    } <= set(row)
    ids = batch_ids(ctx._setup.train_data, 5, seed=5, global_batch=4)
    assert row["batch_crc"] == sum(zlib.crc32(sample.encode()) for sample in ids), "what was trained on, by the record"
    assert "mfu(%)" not in row  # a CPU's peak is not known
    assert row["n_tokens_seen"] == 6 * 4 * 32


def test_a_loop_that_leaves_early_is_not_done(tmp_path: Path, tokenizer: Any) -> None:
    """What it did is saved; a stop that was asked for is another matter."""
    ctx = sharded(tmp_path, tokenizer)
    for batch in ctx.batches():
        if batch.last:
            ctx.step(loss=1.0)
            break
    with pytest.raises(UserError, match="ended after step 1 of 6") as caught:
        ctx.finish()
    assert "ctx.ask_to_stop()" in caught.value.fix
    assert [commit.step for commit in live_commits(RunLog(ctx.store, "default", "made").read())] == [1]


def test_a_loop_without_a_step_is_not_done(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="ended after step 0 of 6"):
        context(tmp_path, tokenizer).finish()

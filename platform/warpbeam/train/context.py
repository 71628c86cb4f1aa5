"""The Context: what every training loop gets, the built-in ones and the user's own.

    def train(ctx):
        model = ctx.build_model()                                # or any torch module
        optimizer = torch.optim.AdamW(model.parameters())
        ctx.track(model=model, optimizer=optimizer)              # restored where there is something to restore
        share = 0.0
        for batch in ctx.batches():                              # begins where the state says
            loss = ctx.loss(model, batch) / batch.global_loss_tokens
            (loss * ctx.grad_scale).backward()                   # gradients are sums over ranks, not means
            share += loss.detach()
            if batch.last:                                       # an optimizer step may take several micro-batches
                optimizer.step(); optimizer.zero_grad()
                ctx.step(loss=share)                             # metrics, heartbeat, checkpoint when due, stop
                share = 0.0

The loop owns the mathematics; the Context owns everything around it: data in order, the learning rate of each step,
evaluation, metrics, checkpoints, resuming, stopping. All ranks call all methods in the same order.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from warpbeam.checkpoint.rng import capture_rng, restore_rng
from warpbeam.data.dataset import PAD
from warpbeam.data.reader import BatchReader, EvalReader, MicroBatch
from warpbeam.data.tokenizer import vocabulary_size
from warpbeam.errors import WarpbeamError
from warpbeam.plan.schedule import lr_of
from warpbeam.record.phases import Phase
from warpbeam.train import attention, hooks, misuse, seeds
from warpbeam.train.batch import Batch, make_batch
from warpbeam.train.evaluate import EvalResult, LossSum, evaluate
from warpbeam.train.loss import CausalLoss
from warpbeam.train.metrics import StepMeter, number, refuse_not_finite
from warpbeam.train.model import Built, build, write_model_files
from warpbeam.train.saving import Progress
from warpbeam.train.setup import Setup
from warpbeam.train.strategies.base import Saved, Strategy
from warpbeam.train.strategies.build import make_strategy
from warpbeam.train.strategies.tracked import Tracked, no_gradients
from warpbeam.train.survivor import Survivor

if TYPE_CHECKING:
    from warpbeam.checkpoint.save import SavedCheckpoint


class Context:
    """One rank's side of a run.

    Attributes:
        job, plan, tokenizer, device: what is trained, how, with what, where.
        rank, world_size: of this process.
        record: where events and metrics go.
        total_steps: of the whole run.
        step_done: optimizer steps that are behind us, those of earlier attempts too.
        grad_scale: undoes the averaging over ranks that DDP, FSDP2 and DeepSpeed do.
        stopping: somebody has asked the run to stop; `batches()` ends after the step.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.job, self.plan, self.root, self.attempt = setup.job, setup.plan, setup.root, setup.attempt
        self.tokenizer, self.device = setup.tokenizer, setup.device
        self.rank, self.world_size = setup.ranks.rank, setup.ranks.world_size
        self.record, self.store, self.total_steps = setup.sink, setup.store, setup.total_steps
        self.step_done = 0
        self.grad_scale = float(self.world_size)
        self.stopping = False
        self.first_eval: EvalResult | None = None
        self.last_eval: EvalResult | None = None
        self.last_row: dict[str, Any] = {}
        self.strategy = ""
        self.packing: attention.Packing | None = None
        self._built: Built | None = None
        self._state: Saved | None = None
        self._survivor = Survivor()
        self._module: torch.nn.Module | None = None
        self._loss: LossSum | None = None
        self._forward_only: Callable[[], AbstractContextManager[None]] = no_gradients
        self._rng: dict[str, torch.Tensor] | None = None
        self._eval_step = self._saved_step = -1
        self._ids_crc = self._batch_crc = 0
        self._pending: Batch | None = None
        self._meter: StepMeter | None = None

    @property
    def lr(self) -> float:
        """The learning rate of the step in progress: a pure function of its number."""
        return lr_of(self.job.train, min(self.step_done + 1, self.total_steps), self.total_steps)

    def loss(self, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Sum of the losses of a micro-batch's tokens, by the job's own hook where it names one."""
        if self._loss is None:
            raise misuse.before_the_model("ctx.loss")
        summed = self._loss(module, batch)
        if batch is self._pending:  # not an evaluation's
            self.record.mark("backward")
        return summed

    # --- before the loop ------------------------------------------------------------------------------------------

    def build_model(self) -> torch.nn.Module:
        """The job's model, the same on every rank; its weights come when it is sharded or tracked."""
        setup = self._setup
        seeds.seed_all(self.job.train.seed)
        self._built = build(
            self.job,
            self.plan,
            self.root,
            setup.storage,
            self.tokenizer,
            device=self.device,
            cache_dir=setup.scratch / "models",
        )
        self.packing = attention.choose(self._built.module, self.device, self.plan.precision)
        return self._built.module

    def shard(self, model: torch.nn.Module) -> Strategy:
        """Spread the model as the plan says, with an optimizer; restored where there is something to restore."""
        strategy = make_strategy(model, self.plan, self.job.train)
        self.grad_scale = strategy.grad_scale
        self._forward_only = strategy.forward_only
        self._adopt(model, strategy.module, strategy, strategy.name)
        return strategy

    def track(
        self, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, loss: LossSum | None = None
    ) -> Tracked:
        """Save and restore a loop's own model and optimizer: plain modules, DDP, FSDP2.

        Args:
            optimizer: built after sharding, as torch wants it.
            loss: `loss(model, batch) -> sum` for evaluation, where the model is not a causal language model.
        """
        tracked = Tracked(model, optimizer)
        self._loss = loss
        self._adopt(model, model, tracked, "own loop")
        return tracked

    def _adopt(self, bare: torch.nn.Module, module: torch.nn.Module, state: Saved, name: str) -> None:
        self._module, self._state, self.strategy = module, state, name
        if self._loss is None:
            hook = hooks.load(self.job.code.loss, "code.loss") if self.job.code.loss else None
            self._loss = CausalLoss(bare, hook)
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in bare.parameters())
        self._meter = StepMeter.of(bare, parameters, self.plan, self.device, self._setup.peak_flops)
        restored = self._setup.checkpoints.restore(state)
        if restored is not None:
            self.step_done = self._saved_step = restored.step
            self._rng = restored.rng
            first = restored.state.get("first_eval")
            self.first_eval = EvalResult(*first) if first else None
        elif self._built is not None and self._built.base is not None:
            state.restore(self._built.base.read, None)
        if self._built is not None and bare is self._built.module:
            self._check_packing(module)
        if self.rank == 0 and restored is None:
            write_model_files(self._setup.store, self.job, self._built, self.tokenizer)
        self.record.event(
            "model_ready",
            strategy=name,
            parameters=parameters,
            attention=self.packing.kernel if self.packing else None,
            attention_reason=self.packing.reason if self.packing else None,
            start_step=self.step_done,
        )
        self._setup.checkpoints.reserve(state)
        self._survivor.adopt(state)

    def _check_packing(self, module: torch.nn.Module) -> None:
        """Prove on this very model that packed examples do not see each other."""
        assert self._built is not None
        if self.packing is None or not self.job.data.packing:
            return
        vocabulary = vocabulary_size(self.tokenizer)
        with self._forward_only():
            self.packing, amount = attention.prove(self._built.module, module, self.packing, vocabulary, self.device)
        attention.refuse_leak(self._built.module, self.packing, amount)

    # --- the loop -------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """This rank's micro-batches, from the first step not done to the last; ends early when asked to stop."""
        if self._state is None or self._meter is None:
            raise misuse.before_the_model("ctx.batches()")
        self._begin()
        if self.step_done >= self.total_steps or self.stopping:
            return
        setup, plan = self._setup, self.plan
        reader = BatchReader(
            setup.train_data,
            self.job.train.seed,
            plan.global_batch,
            self.rank,
            self.world_size,
            plan.micro_batch,
            plan.accumulation,
            self.step_done,
            setup.scratch / "parts",
            end_step=self.total_steps,
            weights=[source.weight for source in self.job.data.train],
            on_wait=lambda text: setup.sink.beat(self.step_done, text),
        )
        with reader, setup.left_when_done():
            self._meter.restart()
            while not self.stopping:
                waiting_since = time.perf_counter()
                self.record.mark("data")
                with setup.clock.phase(Phase.DATA_WAIT):
                    rows = next(reader, None)
                if rows is None:
                    break
                self.record.beat(self.step_done)
                batch = make_batch(rows, self.packing, self.device)
                self._meter.data_wait_s += time.perf_counter() - waiting_since
                self._pending = batch
                self._ids_crc += sum(zlib.crc32(sample.encode()) for sample in batch.sample_ids if sample != PAD)
                self.record.mark("forward", passes=True)
                yield batch
                if batch.last and self._pending is batch:
                    raise misuse.not_ended(batch.step)
        self._tell_saved(setup.checkpoints.settle())
        setup.clock.switch(Phase.IDLE)

    def buckets_s(self) -> dict[str, float]:
        """Where this rank's time went so far: seconds by bucket (record/phases.py)."""
        return self._setup.clock.totals()

    def _begin(self) -> None:
        """Callbacks, the held-out loss before the first step; random numbers last, whatever was drawn until then."""
        self._setup.callbacks.tell("on_start", self)
        if self.step_done == 0 and self._setup.eval_data is not None:
            self._evaluate()
        if self._rng is not None:
            restore_rng(self._rng)
        else:
            seeds.seed_rank(self.job.train.seed + self.step_done, self.rank)
        self._survivor.begin(self.step_done)
        self._setup.clock.switch(Phase.COMPUTE)

    def step(
        self, *, loss: torch.Tensor | float, grad_norm: torch.Tensor | float | None = None, **numbers: float
    ) -> None:
        """End an optimizer step: agree on loss and stop, write the row, evaluate and save when due.

        Args:
            loss: this rank's share of the step's loss, the sum over its micro-batches of `sum / global_loss_tokens`.
            grad_norm: of the gradients over all ranks, before clipping.
            numbers: more for the row, of rank 0.

        Raises:
            RunFailed: the loss or norm is not finite; nothing is committed for this step.
        """
        batch, self._pending = self._pending, None
        if batch is None or not batch.last:
            raise misuse.in_the_middle()
        self._survivor.leave()
        lr = self.lr
        self.record.mark("sync")
        mean, saving = self._agree(loss)
        self.record.mark("callbacks", passes=True)
        norm = None if grad_norm is None else number(grad_norm)
        refuse_not_finite(self.record, self.job.name, batch.step, mean, norm)
        self.step_done = batch.step
        self._write_row(batch, mean, norm, lr, numbers)
        self._tell_saved(self._setup.checkpoints.advance(saving))
        self._settle()
        self._survivor.rest(self.step_done)

    def _agree(self, loss: torch.Tensor | float) -> tuple[float, Progress]:
        """One small all-reduce a step: the loss's shares, whether anybody wants to stop, which samples it was (a sum of
        their ids' crc32, exact in float64 up to two million samples), how far a save has come."""
        asked = self._setup.stop.is_set() or (self.rank == 0 and self._setup.sink.stop_requested is not None)
        share = loss.detach().double() if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        progress = self._setup.checkpoints.progress()
        signs = torch.tensor([asked, self._ids_crc, *progress], dtype=torch.float64, device=self.device)
        summed = self._setup.ranks.sum(torch.cat([share.to(self.device).reshape(1), signs]))
        total, wishes, ids_crc, *saving = summed.tolist()
        self._ids_crc, self._batch_crc = 0, int(ids_crc)
        if wishes and not self.stopping:
            self.stopping = True
            self.record.event("stopping", after_step=self.step_done + 1)
        return float(total), Progress(*saving)

    def _write_row(self, batch: Batch, mean: float, norm: float | None, lr: float, numbers: dict[str, float]) -> None:
        assert self._meter is not None
        row: dict[str, Any] = self._meter.row(batch.step)
        row |= {"loss_metrics/global_avg_loss": mean, "lr": lr, "loss_tokens": batch.global_loss_tokens}
        row["batch_crc"] = self._batch_crc
        if norm is not None:
            row["grad_norm"] = norm
        row |= {"attempt": self.attempt, **numbers}
        self.last_row = row
        self.record.beat(self.step_done)
        self._record(row)
        self._setup.callbacks.tell("on_step", self, row)

    def _record(self, row: dict[str, Any]) -> None:
        if self.rank == 0:
            self.record.metrics(row)
        else:
            self._survivor.keep(row)  # should rank 0 die with it

    def _settle(self) -> None:
        """Evaluate and save where this step asks for it."""
        ends, every = self.step_done >= self.total_steps, self.job.checkpoint.every_steps
        regular = ends or (every is not None and self.step_done % every == 0)
        if self._setup.eval_data is not None:
            eval_every = self.job.train.eval_every
            if ends or (regular if eval_every is None else self.step_done % eval_every == 0):
                self._evaluate()
        if regular or self.stopping:  # a stop does not wait for an evaluation that was not due
            self._save()
        if self._meter is not None:
            self._meter.restart()

    def _evaluate(self) -> None:
        setup = self._setup
        assert setup.eval_data is not None
        assert self._module is not None
        with (
            setup.clock.phase(Phase.COMPUTE),
            EvalReader(
                setup.eval_data, self.rank, self.world_size, self.plan.micro_batch, setup.scratch / "parts"
            ) as reader,
        ):
            batches = (self._held_out(rows) for rows in reader)
            result = evaluate(self._module, self.loss, batches, setup.ranks, self.device, self._forward_only)
        if self.step_done == 0:
            self.first_eval = result
        self.last_eval, self._eval_step = result, self.step_done
        row = {"validation_metrics/loss": result.loss, "validation_metrics/loss_tokens": result.tokens}
        self._record({"step": self.step_done, "attempt": self.attempt, **row})
        setup.callbacks.tell("on_eval", self, result)

    def _held_out(self, rows: MicroBatch) -> Batch:
        self.record.beat(self.step_done, "evaluate")
        return make_batch(rows, self.packing, self.device)

    def _train_state(self) -> dict[str, Any]:
        evaluated = self._eval_step == self.step_done
        return {
            "step": self.step_done,
            "total_steps": self.total_steps,
            "n_tokens_seen": self.step_done * self.plan.tokens_per_step,
            "loss": self.last_row.get("loss_metrics/global_avg_loss"),
            "lr": self.last_row.get("lr"),
            "eval_loss": self.last_eval.loss if self.last_eval and evaluated else None,
            "eval_tokens": self.last_eval.tokens if self.last_eval and evaluated else None,
            "first_eval": [self.first_eval.loss, self.first_eval.tokens] if self.first_eval else None,
        }

    def _save(self) -> None:
        assert self._state is not None
        setup = self._setup
        setup.sink.beat(self.step_done, "checkpoint")
        setup.sink.flush_soon()  # the rows of every committed step should be in the record
        earlier = setup.checkpoints.save(self._state, self.step_done, self._train_state(), capture_rng())
        self._saved_step = self.step_done
        self._tell_saved(earlier)

    def _tell_saved(self, saved: SavedCheckpoint | None) -> None:
        """Tell the callbacks of a commit; a resumed run does not make this call, so what it draws must not count."""
        if saved is not None:
            states = capture_rng()
            self._setup.callbacks.tell("on_checkpoint", self, saved)
            restore_rng(states)

    def save_alone(self, failure: Exception) -> None:
        """After the loop has failed: save what this rank holds, where that is everything. Not collective."""
        if not isinstance(failure, WarpbeamError):  # ours tell of the store, or of a state not worth keeping
            self._survivor.save(self._setup.checkpoints, self.record, self._train_state())

    def ask_to_stop(self) -> None:
        """Make all ranks stop after the step in progress, with a checkpoint; one rank is enough."""
        self._setup.stop.set()

    def finish(self) -> str:
        """After the loop: save what is not saved yet, tell the callbacks. Returns `done` or `stopped`.

        Raises:
            UserError: nobody has asked to stop, and there are steps left; what was done is saved.
        """
        if self._state is not None and self._saved_step != self.step_done:
            self._save()
        self._tell_saved(self._setup.checkpoints.settle())
        left = self.step_done < self.total_steps
        if left and not self.stopping:
            raise misuse.ended_early(self.step_done, self.total_steps)
        state = "stopped" if left else "done"
        self._setup.callbacks.tell("on_end", self, state)
        return state

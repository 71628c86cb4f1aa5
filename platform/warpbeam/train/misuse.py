"""What a loop can do wrong with its Context, in words."""

from __future__ import annotations

from warpbeam.errors import UserError


def before_the_model(what: str) -> UserError:
    """A method that needs the model was called too early."""
    return UserError(f"{what} came before the model", fix="call ctx.shard or ctx.track first", reason="context_order")


def not_ended(step: int) -> UserError:
    """The next micro-batch was asked for although this step's optimizer update was not told."""
    return UserError(
        f"the loop did not end step {step}",
        fix="call ctx.step(loss=...) after the optimizer's step, when batch.last is true",
        reason="context_order",
    )


def in_the_middle() -> UserError:
    """A step was ended before its last micro-batch."""
    return UserError(
        "ctx.step() came in the middle of an accumulation",
        fix="call it once for each step, when batch.last is true",
        reason="context_order",
    )


def ended_early(step: int, total_steps: int) -> UserError:
    """The loop returned before the last step, and nobody had asked it to."""
    return UserError(
        f"the loop ended after step {step} of {total_steps}",
        why="it left ctx.batches(), or never came to it, and nobody had asked it to stop; what was done is saved",
        fix="go through ctx.batches() to its end; `ctx.ask_to_stop()` ends a run early, saved and told as such",
        reason="loop_ended_early",
    )

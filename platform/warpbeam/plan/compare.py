"""What a changed job file means for a run that has begun: nothing, a decision, or another run.

The same command resumes a run. If the file changed since, each changed key is of one of three kinds; the table below is
the whole rule. Layout (ranks, strategy, micro-batch) is harmless because the saved state and the batch sequence do not
depend on it; what would make the steps so far part of a different experiment is impossible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from warpbeam.job import Job

Kind = Literal["harmless", "allow", "impossible"]

KINDS: Final[dict[str, Kind]] = {
    "schema": "harmless",
    "name": "impossible",
    "team": "impossible",
    "model.path": "impossible",
    "model.revision": "impossible",
    "model.trust_remote_code": "harmless",
    "model.config": "impossible",
    "model.tokenizer": "impossible",
    "model.chat_template": "impossible",
    "data.train": "impossible",
    "data.eval": "harmless",
    "data.seq_len": "impossible",
    "data.packing": "impossible",
    "data.on_bad_record": "harmless",  # where it matters, preparation fails
    "data.over_length": "impossible",
    "train.method": "impossible",
    "train.epochs": "allow",
    "train.max_steps": "allow",
    "train.global_batch": "impossible",
    "train.lr": "allow",
    "train.min_lr_ratio": "allow",
    "train.schedule": "allow",
    "train.warmup": "allow",
    "train.decay": "allow",
    "train.weight_decay": "allow",
    "train.betas": "allow",
    "train.eps": "allow",
    "train.clip": "allow",
    "train.precision": "allow",
    "train.seed": "impossible",
    "train.eval_every": "harmless",
    "train.activation_checkpointing": "harmless",
    "train.launch_after_s": "harmless",
    "train.stall_after_s": "harmless",
    "train.spares_after_s": "harmless",
    "code.render": "impossible",
    "code.loss": "allow",
    "code.model": "impossible",
    "code.callbacks": "harmless",
    "recipe": "allow",  # restore itself refuses a state that does not match
    "parallelism.strategy": "harmless",
    "parallelism.offload": "harmless",
    "parallelism.micro_batch": "harmless",
    "resources.accelerators": "harmless",
    "checkpoint.every_steps": "harmless",
    "checkpoint.keep": "harmless",
    "checkpoint.keep_every": "harmless",
    "checkpoint.background": "harmless",
    "checkpoint.upload_limit_mb_per_s": "harmless",
    "checkpoint.store": "impossible",
    "secrets": "harmless",
    "env": "harmless",
}


OPEN: Final[dict[str, Any]] = {
    "parallelism.strategy": "zero3",
    "parallelism.offload": "none",
    "train.activation_checkpointing": False,
}


@dataclass(frozen=True)
class Change:
    """One key with another value than when the run began."""

    key: str
    old: Any
    new: Any
    kind: Kind


def compare_jobs(old: Job, new: Job) -> list[Change]:
    """Every difference, in the file's order. Defaults written out are no difference."""
    before, after = old.to_dict(), new.to_dict()
    pairs = [(key, _value(before, key), _value(after, key), kind) for key, kind in KINDS.items()]
    return [Change(key, was, now, kind) for key, was, now, kind in pairs if was != now]


def _value(content: dict[str, Any], key: str) -> Any:
    """What the plan chooses counts as what older versions took where nobody said anything."""
    value: Any = content
    for part in key.split("."):
        value = value.get(part)
    return OPEN.get(key) if value is None else value

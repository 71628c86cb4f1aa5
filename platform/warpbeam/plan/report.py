"""An answer as text and as JSON: the same numbers for a person and for a script. Pure, held by golden files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from warpbeam.plan.advice import NOT_RUN, Change, checkpointing_words
from warpbeam.plan.answer import Answer
from warpbeam.plan.forecast import FORMULAS, Forecast, formulas
from warpbeam.plan.search import SAME
from warpbeam.plan.words import money, plural, rate, seconds, share, span

Line = tuple[str, str]
WIDTH: Final = 100
PARTS_SHOWN: Final = 0.005  # of the total: smaller parts are in --json, together as `other`
REST_SHOWN: Final = 0.0005
WORDS: Final = {
    "context": "context",
    "fragmentation": "fragmentation",
    "communication": "communication buffers",
    "logits": "logits and loss",
    "tensor_communication": "tensor-parallel communication",
    "context_communication": "context-parallel communication",
    "expert_communication": "expert-parallel communication",
    "pipeline_communication": "pipeline communication",
    "data_communication": "exposed communication",
    "bubble": "pipeline bubble",
    "overhead": "overhead and stragglers",
    "data_wait": "waiting for data",
}


def answer_lines(
    found: Answer, *, steps: int | None, why: str, open_choice: bool, estimated: bool = False
) -> list[Line]:
    """(word, text) pairs from fit to advice; a continuation has an empty word.

    Args:
        steps: to the end; None where it is not known.
        why: what fixed the strategy, in words.
        open_choice: there was something to choose.
        estimated: the steps are a guess until preparation has counted.
    """
    now, others = found.chosen, (*found.stages, *found.alternatives)
    lines = [("fits", fit_words(now)), *_memory_lines(now), *_time_lines(now), *_end_lines(now, steps, estimated)]
    lines.append(("chosen", f"{described(now)}: {why}{_tie(now, others) if open_choice else ''}"))
    if open_choice or not now.fits:
        lines += _labelled("because", (_stage(stage, now) for stage in found.stages))
    if found.ours is not None:
        own = [other for other in others if other.runs_here and other.strategy != "ddp"]
        lines.append(("this version", _alternative(found.ours, now) + _tie(found.ours, own)))
    if now.corrected_by:
        lines.append(("calibrated", f"by {', '.join(now.corrected_by)} on this pool"))
    lines += _labelled("otherwise", (_alternative(other, now) for other in found.alternatives))
    if now.fits:
        lines.append(("would help", _help(found.help_most)))
    else:
        lines += _labelled("would fit", map(_fitting, found.would_fit)) or [("would fit", "nothing that we know")]
    return lines


def _tie(chosen: Forecast, others: Iterable[Forecast]) -> str:
    """Why something that is printed as faster was not chosen."""
    tied = chosen.fits and any(other.fits and 0 < _gain(other, chosen) <= SAME for other in others)
    return f"; of those within {SAME:.0%} of it, what needs least memory" if tied else ""


def fit_words(now: Forecast) -> str:
    """Yes, no, or narrowly: with the numbers."""
    need = f"{now.memory_gib:.2f} GiB expected + {now.margin_gib:.2f} margin of {now.available_gib:.1f} GiB a rank"
    if now.host_lacks_gib:
        return f"no: {lack_words(now)}; {need}"
    if now.fits:
        return f"yes: {need}"
    return f"likely, but without a promise: {need}" if now.likely else f"no: {need}"


def lack_words(now: Forecast, *, with_margin: bool = False) -> str:
    """What there is too little of.

    Args:
        with_margin: what the promise needs, not what is expected.
    """
    if now.host_lacks_gib:
        return f"the host lacks {now.host_lacks_gib:.1f} GiB of a node's memory for what is offloaded"
    needs_gib, margin = (now.promised_gib, " with the margin") if with_margin else (now.memory_gib, "")
    return f"a rank needs {needs_gib:.1f} GiB{margin}, there are {now.available_gib:.1f}"


def why_words(*, fits: bool, likely: bool) -> str:
    """What was chosen among many."""
    if fits:
        return "the fastest that fits"
    return "the fastest that will likely run (no promise holds)" if likely else "none fits; this lacks least"


def answer_json(found: Answer | None, *, steps: int | None) -> dict[str, Any]:
    """The stable keys for scripts. All None where the model is not known."""
    if found is None:
        names = ["fits", "likely", "memory_per_gpu_gib", "step_time_s", "tokens_per_s", "mfu_6n", "mfu_full"]
        names += ["flops_per_token", "hours", "cost", "checkpoint", "answer"]
        return dict.fromkeys(names) | {"formulas": FORMULAS}
    now = found.chosen
    return {
        "fits": now.fits,
        "likely": now.likely,
        "memory_per_gpu_gib": {
            "total": now.memory_gib,
            "margin": now.margin_gib,
            "promised": now.promised_gib,
            "available": now.available_gib,
            "parts": dict(now.memory_parts),
            "host": now.host_gib,
            "nvme": now.nvme_gib,
        },
        "step_time_s": {"total": now.step_s, "parts": dict(now.time_parts)},
        "tokens_per_s": now.tokens_per_s,
        "mfu_6n": now.mfu_6n,
        "mfu_full": now.mfu_full,
        "flops_per_token": {"matrices": now.matrix_flops, "attention": now.attention_flops},
        "hours": now.hours(steps),
        "cost": now.cost(steps),
        "checkpoint": {"bytes": now.checkpoint_bytes, "write_s": now.checkpoint_s},
        "formulas": formulas(now),
        "answer": found.to_dict(),
    }


def _memory_lines(now: Forecast) -> list[Line]:
    lines = [("memory", _parts(now.memory_parts, "GiB"))]
    if now.host_gib or now.nvme_gib:
        where = f"{now.host_gib:.1f} GiB of host memory" if now.host_gib else f"{now.nvme_gib:.1f} GiB of disk"
        lines.append(("", f"offloaded: {where} for each rank"))
    return lines


def _time_lines(now: Forecast) -> list[Line]:
    lines = [("step", f"{seconds(now.step_s)}: {_parts(now.time_parts, 's')}")]
    speed = f"{rate(now.tokens_per_s)} tokens/s"
    if now.accelerators > 1:
        speed += f" ({rate(now.tokens_per_s / now.accelerators)} each)"
    if now.mfu_6n is not None and now.mfu_full is not None:
        matrices, attention = ("4N", "8LHs") if now.frozen else ("6N", "12LHs")
        speed += f"; MFU {share(now.mfu_6n)} by {matrices}, {share(now.mfu_full)} by {matrices} + {attention}"
    return [*lines, ("speed", speed)]


def _end_lines(now: Forecast, steps: int | None, estimated: bool) -> list[Line]:
    hours, cost = now.hours(steps), now.cost(steps)
    if hours is None:
        to_end = "not known: the number of steps is not"
        if now.price is not None:
            to_end += f"; {money(now.price * now.accelerators)} an hour"
    else:
        price = "no price in the pool" if cost is None else f"cost {money(cost)}"
        about = "about " if estimated else ""
        to_end = f"{about}{plural(steps or 0, 'step')}, {span(hours * 3600)}, {price}"
        to_end += "; preparation counts them" if estimated else ""
    copied = _bytes(now.checkpoint_bytes / now.accelerators)
    saving = f"{_bytes(now.checkpoint_bytes)}, written in {span(now.checkpoint_s)} at {now.nodes} GB/s"
    return [("to the end", to_end), ("checkpoint", f"{saving} from a copy in host memory, {copied} a rank")]


def _bytes(value: float) -> str:
    return f"{value / 1e9:,.2f} GB" if value >= 1e8 else f"{value / 1e6:,.1f} MB"


def _parts(parts: Mapping[str, float], unit: str) -> str:
    total = sum(parts.values())
    shown = [(name, value) for name, value in parts.items() if abs(value) > PARTS_SHOWN * total]
    words = [f"{WORDS.get(name, name)} {_number(value)}" for name, value in shown]
    rest = total - sum(value for _, value in shown)
    words += [f"other {_number(rest)}"] if rest > REST_SHOWN * total and rest >= 0.0005 else []
    return ", ".join(words) + f" {unit}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _stage(stage: Forecast, now: Forecast) -> str:
    """One strategy and why it was taken or left."""
    fits = "fits" if stage.fits else "likely" if stage.likely else "does not fit"
    text = (
        f"{stage.strategy:<6} {stage.promised_gib:8.1f} GiB with margin, {fits:<12} {seconds(stage.step_s):>8} a step"
    )
    return text + f", micro-batch {stage.micro_batch}, {checkpointing_words(stage)}{_without_offload(stage, now)}"


def described(found: Forecast) -> str:
    """A setup in one line: strategy, where its states are, micro-batch, what is recomputed."""
    offload = "" if found.offload == "none" else f", states in {found.offload}"
    return f"{found.strategy}{offload}, micro-batch {found.micro_batch}, {checkpointing_words(found)}"


def difference(other: Forecast, now: Forecast) -> str:
    """`21% faster`, of `other` against `now`."""
    gain = _gain(other, now)
    return f"{abs(gain):.0%} {'faster' if gain > 0 else 'slower'}" if abs(gain) >= 0.005 else "as fast"


def _gain(other: Forecast, now: Forecast) -> float:
    return now.step_s / now.tokens / (other.step_s / other.tokens) - 1


def _alternative(other: Forecast, now: Forecast) -> str:
    mark = "" if other.runs_here else f" ({NOT_RUN})"
    return (
        f"{described(other)}{_without_offload(other, now)}: {seconds(other.step_s)} a step ({difference(other, now)}), "
        f"{other.promised_gib:.1f} GiB with margin{mark}"
    )


def _without_offload(other: Forecast, now: Forecast) -> str:
    """Said where the choice offloads and this does not: what it holds would otherwise be misread."""
    return ", nothing offloaded" if other.offload == "none" != now.offload else ""


def _help(change: Change | None) -> str:
    if change is None or change.gain is None:
        return "no single change that we know gains more than 3%"
    return f"{change.text}: {change.gain:.0%} more tokens/s"


def _fitting(change: Change) -> str:
    return f"{change.text}: {change.memory_gib:.1f} GiB expected, {rate(change.tokens_per_s)} tokens/s"


def _labelled(word: str, texts: Iterator[str]) -> list[Line]:
    return [(word if i == 0 else "", text) for i, text in enumerate(texts)]

"""Everything that a command decides before it spends anything: what runs, where its runs are kept, and what the name
means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from warpbeam.checkpoint.log import AlreadyRunning, live_commits, newest_claim
from warpbeam.environment.lint import findings
from warpbeam.environment.setting import JOB, Level
from warpbeam.errors import InfraError, PlatformError, UserError
from warpbeam.job import Job, LoadedJob, parse_job
from warpbeam.launch.calibration import read_correction
from warpbeam.launch.count_rows import estimate_rows
from warpbeam.launch.model_config import read_model_config
from warpbeam.launch.same_name import Begin, Finished, GoOn, decide, next_name
from warpbeam.launch.same_plan import as_chosen
from warpbeam.plan.compare import Change, compare_jobs
from warpbeam.plan.explain import explain_memory
from warpbeam.plan.forecast import Forecast
from warpbeam.plan.machine import machine_of
from warpbeam.plan.plan import Plan, make_plan, plan_setup
from warpbeam.plan.report import lack_words
from warpbeam.plan.scaling import Size, scaling
from warpbeam.pool import LoadedPool, Pool
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView
from warpbeam.storage import ObjectStore, StorageConfig, open_store
from warpbeam.storage.check import check_store
from warpbeam.storage.layout import runs_prefix

CONVERSATIONS: Final = ("messages", "sharegpt")
"""Formats whose records a chat template renders."""


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    job: LoadedJob
    pool: LoadedPool
    accelerators: int | None = None
    fresh: bool = False
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Planned:
    """A job on a pool, worked out; nothing was asked of the store yet."""

    job: Job
    root: Path
    digest: str
    pool: LoadedPool
    plan: Plan
    storage: StorageConfig
    model_config: dict[str, Any] | None = None


def plan_request(request: Request, on_doubt: Callable[[str], None] = lambda text: None) -> Planned:
    """Work out the plan. `on_doubt` hears what could not be looked up; the plan is then made without it."""
    job, pool = request.job.job, request.pool.pool
    storage = pool.storage_config(job.checkpoint.store)
    try:
        config = read_model_config(job, request.job.root, storage)
    except InfraError as error:
        config = None
        advice = f"; {error.fix}" if error.fix else ""
        on_doubt(f"{error.what}: parameters, memory and time are not in the plan{advice}")
    plan = _make(job, request.job.root, pool, request.accelerators, config)
    return Planned(job, request.job.root, request.job.digest, request.pool, plan, storage, config)


def _make(
    job: Job, root: Path, pool: Pool, ranks: int | None, config: dict[str, Any] | None, *, elastic: bool = False
) -> Plan:
    correction = read_correction(pool.name, pool.accelerator.kind)
    rows = estimate_rows(job, root) if job.train.epochs is not None else None
    return make_plan(
        job, pool, world_size=ranks, model_config=config, elastic=elastic, correction=correction, rows=rows
    )


def scale_request(planned: Planned, sizes: list[int]) -> list[Size]:
    """The job at each size, the same global batch; rows of zero weight where it does not divide."""
    job = planned.job

    def at(count: int) -> Forecast | None:
        found = _make(job, planned.root, planned.pool.pool, count, planned.model_config, elastic=True)
        return found.answer.chosen if found.answer else None

    return scaling(sizes, planned.plan.tokens_per_step, at, cores_shared=planned.pool.pool.is_cpu)


def check_sources(planned: Planned) -> None:
    """Look whether there is data, of a known format, and a template for conversations, before anything is started for
    it. Raises UserError."""
    from warpbeam.data.settle import settle_sources  # brings numpy, which a plan does without

    job, rendered = planned.job, planned.job.code.render is not None
    found = [
        source
        for sources in (job.data.train, job.data.eval)
        for source in settle_sources(sources, planned.root, planned.storage, rendered=rendered)
    ]
    if not rendered and any(source.format in CONVERSATIONS for source in found):
        _check_template(planned)


def _check_template(planned: Planned) -> None:
    from warpbeam.data.chat import no_template
    from warpbeam.data.tokenizer_files import has_template, local_folder

    model = planned.job.model
    where = model.tokenizer if isinstance(model.tokenizer, str) else None if model.tokenizer else model.path
    if where is None or model.chat_template:
        return  # a tokenizer that is trained gets one
    try:
        folder = local_folder(where, planned.root, planned.storage, revision=model.revision)
    except InfraError:
        return  # preparation asks again
    if not has_template(folder):
        raise no_template()


def explain_request(planned: Planned) -> list[str] | None:
    """The plan's memory sum written out; None where the model is not known."""
    plan, pool = planned.plan, planned.pool.pool
    setup = plan_setup(planned.job, pool, plan, planned.model_config)
    if setup is None:
        return None
    machine = machine_of(pool, plan.world_size)
    return explain_memory(setup, machine, read_correction(pool.name, pool.accelerator.kind))


def refuse_what_cannot_run(
    planned: Planned, *, force: bool, here: bool = False, on_doubt: Callable[[str], None] = lambda text: None
) -> None:
    """Raise UserError where --accelerators asks for more than the pool has (a plan answers that, nothing runs it), or
    it cannot fit; and, of the pool or the user, where a variable makes the launch fail.

    Args:
        here: ranks are processes of this machine.
        on_doubt: hears what works, but not as well as it could.
    """
    ranks, pool = planned.plan.world_size, planned.pool.pool
    if ranks > pool.max_ranks:
        raise UserError(
            f"--accelerators asks for {ranks}, the pool `{pool.name}` has {pool.max_ranks}",
            fix=f"write `--accelerators {pool.max_ranks}` or less, or choose another pool (--pool)",
            reason="too_few_accelerators",
        )
    refuse_what_cannot_fit(planned.plan, force=force)
    refuse_environment(planned, force=force, here=here, on_doubt=on_doubt)


def refuse_environment(planned: Planned, *, force: bool, here: bool, on_doubt: Callable[[str], None]) -> None:
    """Raise for the first variable that makes the launch fail or hang, unless the user insists; say the others."""
    found = findings(planned.job, planned.pool.pool, ranks=planned.plan.world_size, here=here)
    errors = [] if force else [finding for finding in found if finding.level is Level.ERROR]
    for finding in found:
        if finding not in errors:
            on_doubt(f"{finding.headline}; {finding.do}")
    if errors:
        kind = UserError if errors[0].source == JOB else PlatformError
        raise kind(
            errors[0].headline + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""),
            why=errors[0].why,
            fix=f"{errors[0].do}; `warpbeam lint-env` lists everything, --force starts it all the same",
            reason="bad_environment",
        )


def refuse_what_cannot_fit(plan: Plan, *, force: bool) -> None:
    """Raise UserError before anything is spent on a plan whose expected peak is more than there is."""
    if force or not plan.cannot_fit or plan.answer is None:
        return
    now, ways = plan.answer.chosen, [change for change in plan.answer.would_fit if change.runs_here]
    fix = f"{ways[0].text} would fit; " if ways else ""
    raise UserError(
        f"it cannot fit: {lack_words(now)}",
        why="`warpbeam plan` shows what takes it",
        fix=f"{fix}--force starts it all the same",
        reason="does_not_fit",
    )


@dataclass(frozen=True)
class Opened:
    """A plan whose store answers, and what its name means there."""

    planned: Planned
    store: ObjectStore
    view: RunView
    decision: Begin | GoOn | Finished


def open_run(planned: Planned, *, fresh: bool, allowed: Collection[str]) -> Opened:
    """Check the store, then look the name up.

    Raises:
        StoreSetupError: the store will not do.
        AlreadyRunning: a live run has this name.
        UserError: the name is taken by a run that this job cannot go on with.
    """
    check_store(planned.storage)
    store = open_store(planned.storage)
    if fresh:
        name = next_name(planned.job.name, store.list_dirs(f"{runs_prefix(planned.job.team)}/"))
        planned = replace(
            planned,
            job=planned.job.model_copy(update={"name": name}),
            plan=replace(planned.plan, run=name),
        )
    view = RunView(store, planned.job.team, planned.job.name)
    state = view.state()[0] if view.attempts() else None
    if state is not None and not state.ended:
        raise _already_running(view, state)
    changes = _changes(view, planned.job) if state is not None else []
    kept = bool(live_commits(view.log.read()))
    decision = decide(planned.job.name, state, changes, allowed, kept=kept)
    if isinstance(decision, GoOn):
        planned = _as_before(planned, view)
    return Opened(planned, store, view, decision)


def _as_before(planned: Planned, view: RunView) -> Planned:
    """At the same size a run goes on with what its plan chose: another micro-batch or strategy, from a calibration or
    a newer version, would change the order of sums, and it would not be the run it would have been."""
    facts = next((found for attempt in reversed(view.attempts()) if (found := view.facts(attempt))), None)
    pinned = as_chosen(planned.job, facts["plan"], planned.plan.world_size) if facts else planned.job
    if pinned is planned.job:
        return planned
    plan = _make(pinned, planned.root, planned.pool.pool, planned.plan.world_size, planned.model_config)
    return replace(planned, plan=plan)


def stored_job(view: RunView) -> tuple[Job, Path] | None:
    """The job of the run's newest attempt and the folder that its paths start at; None for an unknown old claim."""
    for entry in reversed(view.log.read()):
        if entry.kind == "claim" and "job" in entry.extra:
            return parse_job(entry.extra["job"], name=f"the job of run {view.run}"), Path(entry.extra["root"])
    return None


def resized(opened: Opened, world_size: int) -> Opened:
    """The same run on another number of ranks: the batch and the order of the data stay."""
    planned = opened.planned
    plan = _make(planned.job, planned.root, planned.pool.pool, world_size, planned.model_config)
    return replace(opened, planned=replace(planned, plan=plan))


def _changes(view: RunView, job: Job) -> list[Change]:
    stored = stored_job(view)
    return compare_jobs(stored[0], job) if stored else []


def _already_running(view: RunView, state: RunState) -> AlreadyRunning:
    claim = newest_claim(view.log.read())
    members = view.log.members_of(claim.attempt) if claim else []
    driver = next((member for member in members if member.role == "driver"), None)
    who = f"pid {driver.pid} on {driver.host}" if driver else "a process that named itself to nobody"
    since = claim.at if claim else "?"
    return AlreadyRunning(
        f"run {view.run!r} is alive: {state}, {who}, since {since}",
        why="one run has one writer: a second start would fight the first",
        fix=f"`warpbeam logs -f {view.run}` watches it, `warpbeam stop {view.run}` ends it with a checkpoint",
    )

"""`warpbeam status RUN`: where one run stands, from its record; where it is in a cluster and does not run, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpbeam.cli.options import Context, Json, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import duration, print_json, say
from warpbeam.launch.self_diagnosis import in_words

if TYPE_CHECKING:
    from warpbeam.launch.standing import Standing
    from warpbeam.record.view import RunStatus


def status(
    run: RunName,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    context: Context = None,
    json: Json = False,
) -> None:
    """Show a run's state, progress and where its time went; why it does not run, as its cluster tells it."""
    from warpbeam.launch.kube_look import ask
    from warpbeam.launch.standing import standing
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    found = view.status()
    stands = standing(view, lambda submission: ask(submission, context))
    said = view.diagnosis(found.attempt) if found.attempt else None
    if json:
        print_json(found.to_dict() | _of_cluster(stands) | {"doctor": said})
        return
    for name, value in _lines(found, stands, said):
        say(f"{name:<12}{value}")


def _of_cluster(stands: Standing) -> dict[str, object]:
    answer: dict[str, object] = {"state": stands.state, "reason": stands.reason, "why": stands.sentence}
    if (sent := stands.submission) is not None:
        where = {
            "context": sent.context,
            "namespace": sent.namespace,
            "rayjob": sent.name,
            "by": sent.by,
            "at": sent.at,
        }
        answer["kubernetes"] = where
    return answer


def _lines(found: RunStatus, stands: Standing, said: dict[str, Any] | None) -> list[tuple[str, str]]:
    lines = [("run", f"{found.team}/{found.run}")]
    lines.append(("state", f"{stands.state}" + (f" ({stands.reason})" if stands.reason else "")))
    if stands.sentence:
        lines.append(("why", stands.sentence))
    if said is not None:
        lines.append(("doctor", in_words(said)))
    if (sent := stands.submission) is not None:
        lines.append(
            ("kubernetes", f"RayJob {sent.name} in namespace {sent.namespace} of {sent.context or sent.server}")
        )
    lines.append(("step", f"{found.step} of {found.total_steps if found.total_steps is not None else '?'}"))
    saved = "none" if found.committed_step is None else f"step {found.committed_step}"
    lines.append(("checkpoint", saved))
    if found.attempt:
        lines.append(("attempt", _attempt(found)))
    if not stands.state.ended and found.heartbeat_age_s is not None:
        phase = f", in phase {found.phase}" if found.phase else ""
        lines.append(("heartbeat", f"{duration(found.heartbeat_age_s)} ago{phase}"))
    if found.loss is not None:
        lines.append(("loss", f"{found.loss:.4f}"))
    if found.tokens_per_s is not None:
        lines.append(("tokens/s", f"{found.tokens_per_s:,.0f} (median of the newest steps)"))
    if not stands.state.ended:
        lines.append(("time left", duration(found.eta_s)))
    spent = {name: seconds for name, seconds in found.buckets.items() if seconds >= 0.05}
    if spent:
        lines.append(("time", ", ".join(f"{name} {duration(seconds)}" for name, seconds in spent.items())))
    return lines


def _attempt(found: RunStatus) -> str:
    return f"{found.attempt} (number {found.attempts}), on {found.host}, since {found.claimed_at}"

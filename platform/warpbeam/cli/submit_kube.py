"""`warpbeam submit JOB.yaml --kube`: a run in a Kubernetes cluster, from the plan to its end."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from warpbeam.cli.kube_order import Words, order_of, plan_words, refuse_what_cannot_run, upload
from warpbeam.cli.options import place_options
from warpbeam.cli.output import note, out, print_json, say, warn
from warpbeam.cli.plan_text import show_plan
from warpbeam.errors import UnknownFate

if TYPE_CHECKING:
    from warpbeam.job import LoadedJob
    from warpbeam.kube.client import Cluster
    from warpbeam.kube.order import Order
    from warpbeam.kube.render import Rendered
    from warpbeam.kube.why import Seen
    from warpbeam.launch.begin import Opened, Planned
    from warpbeam.launch.bundle import Bundle
    from warpbeam.launch.kube_submit import Sent, There

AGAIN = "the same command, without --fresh"


def submit_kube(words: Words, *, context: str | None, fresh: bool, detach: bool, dry_run: bool, json: bool) -> None:
    """The whole way. Ends by raising the exit code."""
    loaded, planned = plan_words(words)
    if not json:
        show_plan(planned.plan)
    refuse_what_cannot_run(planned, words.kind, force=words.force)
    with tempfile.TemporaryDirectory(prefix="warpbeam-bundle-") as folder:
        if fresh:
            words = replace(words, name=_fresh_name(planned, words))
        order, rendered, bundle = _rendered(words, loaded, planned, Path(folder))
        cluster = _connect(context)
        sent = _bring(cluster, order, rendered, bundle, planned, words, dry_run=dry_run, json=json)
    if sent is None:
        return
    if detach:
        _say_detached(sent.target.run, words)
        return
    _follow(cluster, sent, planned, words, json=json)


def _rendered(words: Words, loaded: LoadedJob, planned: Planned, folder: Path) -> tuple[Order, Rendered, Bundle]:
    from warpbeam.kube.render import refuse_placeholders, render

    order, bundle = order_of(words, loaded, planned, folder)
    assert bundle is not None, "a RayJob has one"
    refuse_placeholders(order)
    rendered = render(order)
    for text in rendered.notes:
        warn(text)
    return order, rendered, bundle


def _connect(context: str | None) -> Cluster:
    from warpbeam.launch.kube_look import needs_kube_extra

    try:
        from warpbeam.kube.client import Cluster
    except ImportError as error:
        raise needs_kube_extra() from error
    return Cluster.connect(context)


def _bring(
    cluster: Cluster,
    order: Order,
    rendered: Rendered,
    bundle: Bundle,
    planned: Planned,
    words: Words,
    *,
    dry_run: bool,
    json: bool,
) -> Sent | None:
    """Make everything, or find the run that is there; None where nothing is to be followed."""
    from warpbeam.launch.kube_submit import There, replace_ended, send, sent, there_is, try_out

    job = rendered.documents[-1]
    live = cluster.get("RayJob", order.name, order.team.namespace)
    there = there_is(live, job)
    if there is There.SAME:
        assert live is not None
        note(f"run {order.job.name} is in the cluster already, as it is here: following it")
        _say_sent(cluster, sent(live), order, json=json, there=there)
        return sent(live)
    opened = _open(order, planned, words, json=json)
    if opened is None:
        return None
    try_out(cluster, rendered.documents, taken=there is There.ENDED)
    if dry_run:
        note(f"{cluster.context or cluster.server} would take it; nothing was made")
        return None
    upload(order, bundle)
    if live is not None:
        replace_ended(cluster, live)
    made = send(cluster, opened.store, order, rendered.documents)
    _say_sent(cluster, made, order, json=json, there=there)
    return made


def _open(order: Order, planned: Planned, words: Words, *, json: bool) -> Opened | None:
    """What the name means in the store; None where the run is finished already."""
    from warpbeam.cli.run import say_decision, say_finished
    from warpbeam.launch.begin import open_run
    from warpbeam.launch.same_name import Finished

    opened = open_run(replace(planned, job=order.job, plan=order.plan), fresh=False, allowed=frozenset(words.allow))
    if isinstance(opened.decision, Finished):
        say_finished(opened, json)
        return None
    say_decision(opened)
    return opened


def _fresh_name(planned: Planned, words: Words) -> str:
    from warpbeam.launch.begin import open_run

    name = open_run(planned, fresh=True, allowed=frozenset(words.allow)).planned.job.name
    note(f"--fresh: it trains under the name {name!r}")
    return name


def _say_sent(cluster: Cluster, made: Sent, order: Order, *, json: bool, there: There) -> None:
    target = made.target
    if json:
        print_json(
            {
                "run": target.run,
                "team": target.team,
                "context": cluster.context,
                "namespace": target.namespace,
                "rayjob": target.name,
                "uid": made.uid,
                "bundle": order.bundle.uri if order.bundle else "",
                "found": there.value,
            }
        )
    elif there.value != "same":
        say(f"run {target.run} was sent as RayJob {target.name} in namespace {target.namespace}")


def _follow(cluster: Cluster, made: Sent, planned: Planned, words: Words, *, json: bool) -> None:
    """Print what happens; ends with the run's exit code."""
    from warpbeam.launch.kube_follow import Listener, follow_run

    def on_log(line: bytes) -> None:
        if not json:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    listener = Listener(on_line=note, on_log=on_log, on_trouble=warn)
    run = made.target.run
    try:
        seen = follow_run(cluster, made, listener)
    except KeyboardInterrupt:
        where = place_options(words.pool)
        raise UnknownFate(
            f"run {run!r} is not followed any more; it goes on in the cluster",
            fix=f"attach again: {AGAIN}; `warpbeam status {run}{where}` says where it stands, "
            f"`warpbeam stop {run}{where}` ends it with a checkpoint",
            reason="detached",
        ) from None
    out.file.flush()
    code, answer = _end(planned, made, seen)
    if json:
        print_json(answer)
    else:
        said = answer["sentence"] and f": {answer['sentence']}"
        say(f"run {run}: {answer['state']}" + (f" ({answer['reason']})" if answer["reason"] else "") + said)
    raise typer.Exit(code)


def _end(planned: Planned, made: Sent, seen: Seen) -> tuple[int, dict[str, Any]]:
    """The log's word where a driver has spoken, else the cluster's."""
    from warpbeam.launch.standing import exit_code, standing
    from warpbeam.record.view import RunView
    from warpbeam.storage.connect import open_store

    view = RunView(open_store(planned.storage), made.target.team, made.target.run)
    found = standing(view, lambda submission: seen)
    answer = {"run": view.run, "team": view.team, "state": found.state, "reason": found.reason}
    code = exit_code(view, found)
    return code, answer | {"sentence": found.sentence, "owner": found.owner, "exit_code": code}


def _say_detached(run: str, words: Words) -> None:
    where = place_options(words.pool)
    note(
        f"it goes on in the cluster; attach: {AGAIN} and --detach; `warpbeam status {run}{where}` says where it stands"
    )

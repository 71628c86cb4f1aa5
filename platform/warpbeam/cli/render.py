"""`warpbeam render JOB.yaml --pool P`: the manifests of a job on a Kubernetes cluster, to be reviewed and applied."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpbeam.cli.kube_order import Words, order_of, plan_words, refuse_what_cannot_run, upload
from warpbeam.cli.options import Accelerators, Context, Force, JobFile, Namespace, Pool
from warpbeam.cli.output import note, say, warn
from warpbeam.errors import UserError
from warpbeam.kube.order import Kind

if TYPE_CHECKING:
    from warpbeam.kube.order import Order
    from warpbeam.kube.render import Rendered

DIFFERS = 1
"""Exit code of --check where the file, or the cluster, does not have what would be rendered."""


def render(
    job: JobFile,
    pool: Pool = None,
    kind: Annotated[Kind, typer.Option("--kind", help="What to render; tenancy: the team's namespace.")] = Kind.RAYJOB,
    accelerators: Accelerators = None,
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", metavar="CRON", help="Of a raycronjob: '0 3 * * *', in the operator's zone."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="URI", help="Of a rayservice: an exported model, s3:// or hf://.")
    ] = None,
    working_dir: Annotated[
        Path | None,
        typer.Option("--working-dir", metavar="DIR", help="What pods get. Default: this folder, or the job's own."),
    ] = None,
    put: Annotated[bool, typer.Option("--upload", help="Put the packed folder into the pool's store.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of printing.")] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing: is it what FILE holds, or without --out what the cluster has?"),
    ] = False,
    context: Context = None,
    namespace: Namespace = None,
    force: Force = False,
) -> None:
    """Render a job as Kubernetes manifests: the same files give the same bytes.

    The plan is made first, and what cannot run is refused. Exits with 1 where --check finds something else.
    """
    _refuse_odd_options(kind, schedule=schedule, model=model)
    if context is not None and not (check and out is None):
        raise UserError("--context asks a cluster, which only --check without --out does", reason="bad_input")
    words = Words(
        job=job,
        pool=pool,
        kind=kind,
        accelerators=accelerators,
        schedule=schedule,
        model=model,
        working_dir=working_dir,
        out=out,
        force=force,
        namespace=namespace,
    )
    order, rendered = _made(words, put=put)
    if check:
        _check(order, rendered, out, context)
    else:
        _write(rendered, out)


def _made(words: Words, *, put: bool) -> tuple[Order, Rendered]:
    """What is to be rendered, and that; the packed folder is in the store where that was asked for."""
    from warpbeam.kube.render import render as rendered_of

    loaded, planned = plan_words(words)
    refuse_what_cannot_run(planned, words.kind, force=words.force)
    with tempfile.TemporaryDirectory(prefix="warpbeam-bundle-") as folder:
        order, bundle = order_of(words, loaded, planned, Path(folder))
        if put and bundle is not None:
            upload(order, bundle)
    return order, rendered_of(order)


def _write(rendered: Rendered, out: Path | None) -> None:
    for text in rendered.notes:
        warn(text)
    if out is None:
        sys.stdout.write(rendered.text)
        return
    out.write_text(rendered.text, encoding="utf-8")
    note(f"{len(rendered.documents)} documents in {out}")


def _refuse_odd_options(kind: Kind, *, schedule: str | None, model: str | None) -> None:
    """Each kind has what it needs, and nothing that it would silently leave out."""
    wanted = {"--schedule": (schedule, Kind.RAYCRONJOB), "--model": (model, Kind.RAYSERVICE)}
    for option, (value, owner) in wanted.items():
        if value is None and kind is owner:
            raise UserError(f"--kind {kind} needs {option}", fix="see `warpbeam render --help`", reason="bad_input")
        if value is not None and kind is not owner:
            raise UserError(
                f"{option} has no meaning for --kind {kind}", fix=f"leave it out, or --kind {owner}", reason="bad_input"
            )
    if schedule is not None and len(schedule.split()) != 5 and not schedule.startswith("@"):
        raise UserError(
            f"--schedule {schedule!r} is no cron expression",
            fix="write minute, hour, day, month and weekday: `--schedule '0 3 * * *'`",
            reason="bad_schedule",
        )


def _check(order: Order, rendered: Rendered, out: Path | None, context: str | None) -> None:
    """Exits with `DIFFERS` where the file, or the cluster, has something else."""
    from warpbeam.kube.render import refuse_placeholders

    refuse_placeholders(order)
    if out is None:
        _compare_with_cluster(rendered, context)
    else:
        _compare(out, rendered.text)


def _compare_with_cluster(rendered: Rendered, context: str | None) -> None:
    from warpbeam.kube.client import Cluster
    from warpbeam.kube.drift import differences, to_apply

    cluster = Cluster.connect(context)
    lines: list[str] = []
    for document in rendered.documents:
        metadata = document["metadata"]
        live = cluster.get(document["kind"], metadata["name"], metadata.get("namespace", ""))
        if live is None and document["kind"] == "RoleBinding":
            after: Mapping[str, Any] = document  # it cannot be tried before its Role is there
        else:
            after = cluster.apply(to_apply(document, live), dry_run=True, force=True)
        lines += differences(live, after)
    if not lines:
        note(f"{cluster.context or cluster.server} has what these files give")
        return
    for line in lines:
        say(line)
    warn(f"{cluster.context or cluster.server} has something else: `+` is what these files would change")
    raise typer.Exit(DIFFERS)


def _compare(path: Path, text: str) -> None:
    there = path.read_text(encoding="utf-8") if path.is_file() else None
    if there == text:
        note(f"{path} is what these files give")
        return
    warn(f"{path} is not there" if there is None else f"{path} is not what these files give: render it again")
    raise typer.Exit(DIFFERS)

"""`warpbeam render JOB.yaml --pool P`: the manifests of a job on a Kubernetes cluster, to be reviewed and applied."""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Accelerators, Force, JobFile, Pool
from warpbeam.cli.output import note, warn
from warpbeam.cli.submit import default_root, relative_to_root
from warpbeam.errors import UserError
from warpbeam.kube.order import Kind

if TYPE_CHECKING:
    from warpbeam.job import LoadedJob
    from warpbeam.kube.order import BundleRef, Order
    from warpbeam.launch.begin import Planned

DIFFERS = 1
"""Exit code of --check where the file is not what would be rendered."""


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
    upload: Annotated[bool, typer.Option("--upload", help="Put the packed folder into the pool's store.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of printing.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: is FILE what would be rendered, with a real image?")
    ] = False,
    force: Force = False,
) -> None:
    """Render a job as Kubernetes manifests: the same files give the same bytes.

    The plan is made first, and what cannot run is refused. Exits with 1 where --check finds another text in FILE.
    """
    from warpbeam.kube.render import refuse_placeholders
    from warpbeam.kube.render import render as rendered_of

    _refuse_odd_options(kind, schedule=schedule, model=model, out=out, check=check)
    words = Words(
        job=job,
        pool=pool,
        kind=kind,
        accelerators=accelerators,
        schedule=schedule,
        model=model,
        working_dir=working_dir,
        out=out,
        upload=upload,
        force=force,
    )
    order = _order(words)
    rendered = rendered_of(order)
    if check:
        assert out is not None
        refuse_placeholders(order)
        _compare(out, rendered.text)
        return
    for text in rendered.notes:
        warn(text)
    if out is None:
        sys.stdout.write(rendered.text)
        return
    out.write_text(rendered.text, encoding="utf-8")
    note(f"{len(rendered.documents)} documents in {out}")


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the command line said."""

    job: Path
    pool: str | None
    kind: Kind
    accelerators: int | None
    schedule: str | None
    model: str | None
    working_dir: Path | None
    out: Path | None
    upload: bool
    force: bool

    @property
    def runs(self) -> bool:
        """Whether the job itself is sent, with its folder."""
        return self.kind in (Kind.RAYJOB, Kind.RAYCRONJOB)


def _order(words: Words) -> Order:
    from warpbeam.job import load_job
    from warpbeam.kube.order import Order
    from warpbeam.launch.begin import Request, plan_request
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(words.job)
    with placing(words.job):
        planned = plan_request(Request(loaded, load_pool(words.pool), words.accelerators), on_doubt=warn)
        if words.runs:
            check_own_code(loaded.job, loaded.root)
    _refuse_what_cannot_run(planned, words.kind, force=words.force)
    order = Order(
        kind=words.kind,
        plan=planned.plan,
        job=loaded.job,
        pool=planned.pool.pool,
        job_digest=loaded.digest,
        pool_digest=planned.pool.digest,
        rigid=words.accelerators is not None,
        schedule=words.schedule or "",
        model=words.model or "",
    )
    return _with_bundle(order, loaded, words) if words.runs else order


def _refuse_what_cannot_run(planned: Planned, kind: Kind, *, force: bool) -> None:
    from warpbeam.kube.trains import refuse_what_does_not_train
    from warpbeam.launch.begin import refuse_what_cannot_run

    if kind in (Kind.RAYJOB, Kind.RAYCRONJOB, Kind.RAYCLUSTER):
        refuse_what_cannot_run(planned, force=force, on_doubt=warn)
    if not force:
        refuse_what_does_not_train(planned.pool.pool, kind)


def _with_bundle(order: Order, loaded: LoadedJob, words: Words) -> Order:
    """The order with its packed working folder, which is put into the store where that was asked for."""
    from warpbeam.launch.bundle import check_data_travels, pack, read_folder

    root = (words.working_dir or default_root(loaded.root)).resolve()
    contents = read_folder(root)
    if words.out is not None:  # what is written there names the bundle, so it cannot be in it
        written = words.out.resolve()
        contents = replace(contents, files=tuple(file for file in contents.files if file.path != written))
    check_data_travels(contents, loaded.job, loaded.root)
    with tempfile.TemporaryDirectory(prefix="warpbeam-bundle-") as folder:
        bundle = pack(contents, Path(folder) / "bundle.zip")
        if words.upload:
            _upload(order, bundle.path, bundle.digest)
    options = ["--accelerators", str(words.accelerators)] if words.accelerators else []
    options += ["--force"] if words.force else []
    command = ["warpbeam", "run", relative_to_root(loaded.path, root), "--yes", *options]
    return replace(order, entrypoint=shlex.join(command), bundle=_reference(order, bundle.digest))


def _reference(order: Order, digest: str) -> BundleRef:
    from warpbeam.kube.order import BundleRef
    from warpbeam.storage.layout import bundle_key

    return BundleRef(f"{order.pool.storage_config().uri}/{bundle_key(order.job.team, digest)}", digest)


def _upload(order: Order, path: Path, digest: str) -> None:
    from warpbeam.storage.connect import open_store
    from warpbeam.storage.layout import bundle_key

    store = open_store(order.pool.storage_config())
    key = bundle_key(order.job.team, digest)
    if store.put_if_absent(key, path.read_bytes()):
        note(f"bundle {digest[:12]} is in {store.uri}/{key}")
    else:
        note(f"bundle {digest[:12]} was there already")


def _refuse_odd_options(kind: Kind, *, schedule: str | None, model: str | None, out: Path | None, check: bool) -> None:
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
    if check and out is None:
        raise UserError("--check compares with a file", fix="name it: --out FILE", reason="bad_input")


def _compare(path: Path, text: str) -> None:
    there = path.read_text(encoding="utf-8") if path.is_file() else None
    if there == text:
        note(f"{path} is what these files give")
        return
    warn(f"{path} is not there" if there is None else f"{path} is not what these files give: render it again")
    raise typer.Exit(DIFFERS)

"""From the words of a command to what is to be rendered: plan, packed folder, order. `render` and `submit --kube` share
it, so that what was reviewed is what is sent.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.cli.output import note, warn
from warpbeam.errors import PlatformError, UserError
from warpbeam.kube.order import Kind

if TYPE_CHECKING:
    from warpbeam.job import LoadedJob
    from warpbeam.kube.order import BundleRef, Order
    from warpbeam.launch.begin import Planned
    from warpbeam.launch.bundle import Bundle
    from warpbeam.pool import LoadedPool


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the command line said.

    Args:
        name: of the run, where it is not the job's (--fresh).
        namespace: where it is not the team's of the pool.
        out: a file that is written; it cannot be in the bundle that it names.
    """

    job: Path
    pool: str | None = None
    kind: Kind = Kind.RAYJOB
    accelerators: int | None = None
    schedule: str | None = None
    model: str | None = None
    working_dir: Path | None = None
    out: Path | None = None
    force: bool = False
    allow: tuple[str, ...] = ()
    name: str | None = None
    namespace: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the job itself is sent, with its folder."""
        return self.kind in (Kind.RAYJOB, Kind.RAYCRONJOB)


def plan_words(words: Words) -> tuple[LoadedJob, Planned]:
    """The job on its pool, with its own code checked; what cannot run is refused."""
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request, plan_request
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(words.job)
    pool = in_namespace(load_pool(words.pool), loaded.job.team, words.namespace)
    with placing(words.job):
        planned = plan_request(Request(loaded, pool, words.accelerators), on_doubt=warn)
        if words.runs:
            check_own_code(loaded.job, loaded.root)
    return loaded, planned


def in_namespace(pool: LoadedPool, team: str, namespace: str | None) -> LoadedPool:
    """The pool with the team's jobs in another namespace.

    Raises:
        UserError: it is no namespace's name.
    """
    section = pool.pool.kubernetes
    if namespace is None or section is None or team not in section.teams:
        return pool
    from warpbeam.pool import parse_pool

    content = pool.pool.to_dict()
    content["kubernetes"]["teams"][team]["namespace"] = namespace
    try:
        return replace(pool, pool=parse_pool(content, name="--namespace"))
    except PlatformError as error:
        raise UserError(f"--namespace {namespace} cannot be used", why=error.what, reason="bad_name") from error


def refuse_what_cannot_run(planned: Planned, kind: Kind, *, force: bool) -> None:
    """Raise before anything is packed, for a plan that cannot fit or accelerators that this version does not use."""
    from warpbeam.kube.trains import refuse_what_does_not_train
    from warpbeam.launch.begin import refuse_what_cannot_run
    from warpbeam.version_contract import refuse_other_versions
    from warpbeam.versions import installed_versions

    if kind in (Kind.RAYJOB, Kind.RAYCRONJOB, Kind.RAYCLUSTER):
        refuse_what_cannot_run(planned, force=force, on_doubt=warn)
    if not force:
        refuse_other_versions(planned.pool.pool, installed_versions())
        refuse_what_does_not_train(planned.pool.pool, kind)


def order_of(words: Words, loaded: LoadedJob, planned: Planned, folder: Path) -> tuple[Order, Bundle | None]:
    """What is to be rendered, and the packed working folder, in `folder`."""
    from warpbeam.kube.order import Order

    job = planned.job if words.name is None else planned.job.model_copy(update={"name": words.name})
    order = Order(
        kind=words.kind,
        plan=replace(planned.plan, run=job.name),
        job=job,
        pool=planned.pool.pool,
        job_digest=loaded.digest,
        pool_digest=planned.pool.digest,
        rigid=words.accelerators is not None,
        schedule=words.schedule or "",
        model=words.model or "",
    )
    if not words.runs:
        return order, None
    root, bundle = _pack(words, loaded, folder)
    options = ["--accelerators", str(words.accelerators)] if words.accelerators else []
    options += ["--name", words.name] if words.name else []
    options += ["--force"] if words.force else []
    options += [text for key in words.allow for text in ("--allow", key)]
    command = ["warpbeam", "run", relative_to_root(loaded.path, root), "--yes", *options]
    return replace(order, entrypoint=shlex.join(command), bundle=_reference(order, bundle.digest)), bundle


def upload(order: Order, bundle: Bundle) -> None:
    """Put the packed folder into the store under its content's name, unless it is there."""
    from warpbeam.storage.connect import open_store
    from warpbeam.storage.layout import bundle_key

    store = open_store(order.pool.storage_config())
    key = bundle_key(order.job.team, bundle.digest)
    if store.put_if_absent(key, bundle.path.read_bytes()):
        note(f"bundle {bundle.digest[:12]} is in {store.uri}/{key}")
    else:
        note(f"bundle {bundle.digest[:12]} was there already")


def default_root(job_root: Path) -> Path:
    """What travels where nobody says it: this folder, or the job's own."""
    here = Path.cwd()
    return here if job_root.is_relative_to(here) else job_root


def relative_to_root(job: Path, root: Path) -> str:
    """The job file as the cluster names it. Raises UserError where it would not travel."""
    if not job.is_relative_to(root):
        raise UserError(
            f"the job file {job} is outside the working folder {root}",
            why="only the working folder is sent",
            fix="run the command in a folder above the job file, or name one with --working-dir",
            reason="job_outside",
        )
    return job.relative_to(root).as_posix()


def _pack(words: Words, loaded: LoadedJob, folder: Path) -> tuple[Path, Bundle]:
    from warpbeam.launch.bundle import check_data_travels, pack, read_folder

    root = (words.working_dir or default_root(loaded.root)).resolve()
    contents = read_folder(root)
    if words.out is not None:  # what is written there names the bundle, so it cannot be in it
        written = words.out.resolve()
        contents = replace(contents, files=tuple(file for file in contents.files if file.path != written))
    check_data_travels(contents, loaded.job, loaded.root)
    return root, pack(contents, folder / "bundle.zip")


def _reference(order: Order, digest: str) -> BundleRef:
    from warpbeam.kube.order import BundleRef
    from warpbeam.storage.layout import bundle_key

    return BundleRef(f"{order.pool.storage_config().uri}/{bundle_key(order.job.team, digest)}", digest)

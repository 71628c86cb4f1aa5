"""`warpbeam submit JOB.yaml`: the same job on a running Ray cluster (--address) or in Kubernetes (--kube), plan checked
first."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.kube_order import Words, default_root, relative_to_root
from warpbeam.cli.options import Accelerators, Context, Force, JobFile, Json, Namespace, Pool
from warpbeam.cli.output import note, out, print_json, print_table, say, size, warn
from warpbeam.cli.plan_text import show_plan
from warpbeam.cli.run import Allow, Fresh
from warpbeam.errors import UnknownFate, UserError

if TYPE_CHECKING:
    from warpbeam.job import Job
    from warpbeam.launch.bundle import Bundle, Contents
    from warpbeam.launch.ray_jobs import JobState, RayJobs


def submit(
    job: JobFile,
    address: Annotated[
        str | None, typer.Option("--address", metavar="URL", envvar="RAY_ADDRESS", help="A Ray cluster's dashboard.")
    ] = None,
    kube: Annotated[bool, typer.Option("--kube", help="As a RayJob with a Ray cluster of its own.")] = False,
    context: Context = None,
    namespace: Namespace = None,
    pool: Pool = None,
    accelerators: Accelerators = None,
    fresh: Fresh = False,
    allow: Allow = None,
    force: Force = False,
    working_dir: Annotated[
        Path | None,
        typer.Option("--working-dir", metavar="DIR", help="What is sent. Default: this folder, or the job's own."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the job's output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and what would be sent.")] = False,
    json: Json = False,
) -> None:
    """Send a job to a running Ray cluster, or to Kubernetes.

    The plan and your own code are checked here first; the working folder travels along. Exits as the job does.
    """
    words = Words(
        job=job,
        pool=pool,
        accelerators=accelerators,
        working_dir=working_dir,
        force=force,
        allow=tuple(allow or ()),
        namespace=namespace,
    )
    if kube:
        from warpbeam.cli.submit_kube import submit_kube

        submit_kube(words, context=context, fresh=fresh, detach=detach, dry_run=dry_run, json=json)
    else:
        address = _ray_address(address, context, namespace)
        _send_to_ray(words, address, fresh=fresh, detach=detach, dry_run=dry_run, json=json)


def _ray_address(address: str | None, context: str | None, namespace: str | None) -> str:
    """Where a Ray cluster is. Raises UserError where nothing, or something else, was said."""
    for name, value in (("--context", context), ("--namespace", namespace)):
        if value is not None:
            raise UserError(f"{name} goes with --kube", fix=f"add --kube, or leave {name} out", reason="bad_input")
    if address is None:
        raise UserError(
            "where to? neither --address nor --kube",
            fix="`--address http://HOST:8265` for a running Ray cluster, `--kube --pool POOL` for Kubernetes",
            reason="bad_input",
        )
    return address


def _send_to_ray(words: Words, address: str, *, fresh: bool, detach: bool, dry_run: bool, json: bool) -> None:
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request, plan_request, refuse_what_cannot_run
    from warpbeam.launch.bundle import check_data_travels, pack, read_folder
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.launch.ray_jobs import RayJobs
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(words.job)
    jobs = RayJobs(address)
    with placing(words.job):
        planned = plan_request(Request(loaded, load_pool(words.pool), words.accelerators), on_doubt=warn)
        plan = planned.plan
        check_own_code(loaded.job, loaded.root)
    root = (words.working_dir or default_root(loaded.root)).resolve()
    options = ["--accelerators", str(words.accelerators)] if words.accelerators else []
    options += [*(["--fresh"] if fresh else []), *(["--force"] if words.force else [])]
    options += [text for key in words.allow for text in ("--allow", key)]
    entrypoint = shlex.join(["warpbeam", "run", relative_to_root(loaded.path, root), "--yes", *options])
    contents = read_folder(root)
    if not json:
        show_plan(plan)
    refuse_what_cannot_run(planned, force=words.force, on_doubt=warn)
    if not json:
        _show_contents(contents)
    check_data_travels(contents, loaded.job, loaded.root)
    if not dry_run:
        jobs.ray_version()  # a wrong address is told before anything is packed
    with tempfile.TemporaryDirectory(prefix="warpbeam-bundle-") as folder:
        bundle = pack(contents, Path(folder) / "bundle.zip")
        if not json:
            note(f"bundle {bundle.digest[:12]}: {size(bundle.packed_bytes)} packed")
        if dry_run:
            if json:
                print_json({"run": loaded.job.name, "team": loaded.job.team, "bundle": bundle.digest, "sent": False})
            return
        submission_id = _send(jobs, loaded.job, bundle, entrypoint, json=json)
    if not detach:
        _follow(jobs, submission_id, loaded.job.name, quiet=json)


def _send(jobs: RayJobs, job: Job, bundle: Bundle, entrypoint: str, *, json: bool) -> str:
    """Upload and start; returns the cluster's name for it."""
    uri = jobs.upload(bundle)
    submission_id = f"{job.name}-{secrets.token_hex(4)}"
    metadata = {"warpbeam_run": job.name, "warpbeam_team": job.team, "warpbeam_bundle": bundle.digest}
    jobs.submit(entrypoint, uri, submission_id, metadata)
    if json:
        print_json({"run": job.name, "team": job.team, "submission_id": submission_id, "bundle": uri})
    else:
        say(f"run {job.name} was sent as {submission_id}")
    return submission_id


def _follow(jobs: RayJobs, submission_id: str, run: str, *, quiet: bool) -> None:
    """Print the job's output; ends with the driver's own exit code."""
    from warpbeam.launch.ray_jobs import JobState, follow

    try:
        for piece in follow(jobs, submission_id, on_trouble=warn):
            if isinstance(piece, JobState):
                raise typer.Exit(exit_code(piece))
            if not quiet:
                out.file.write(piece)
                out.file.flush()
    except KeyboardInterrupt:
        raise UnknownFate(
            f"{submission_id} is not followed any more; it goes on in the cluster",
            fix=f"where its store can be reached: `warpbeam wait {run}`, `warpbeam logs -f {run}`; "
            f"`warpbeam stop {run}` ends it with a checkpoint",
            reason="detached",
        ) from None


def exit_code(state: JobState) -> int:
    """A job's own exit code, where it had one of ours."""
    if state.status == "SUCCEEDED":
        return 0
    if state.message and state.exit_code is None:
        warn(f"{state.status}: {state.message.strip().splitlines()[0]}")
    return state.exit_code if state.exit_code is not None and 0 < state.exit_code < 5 else 1


def _show_contents(contents: Contents) -> None:
    say(f"\n{contents.root}: {size(contents.total_bytes)} in {len(contents.files):,} files travel; largest:")
    rows = [(name, size(total), f"{files:,}") for name, total, files in contents.largest_folders()]
    print_table(("FOLDER", "SIZE", "FILES"), rows, right=("SIZE", "FILES"))
    for link in contents.left_out_links[:5]:
        note(f"left out: {link} is a link that leads outside")

"""`warpbeam resume RUN`: the run's own stored job, from its newest checkpoint, without looking for the job file."""

from __future__ import annotations

from warpbeam.cli.options import Accelerators, Force, Json, Pool, RunName, Store, Team, open_runs, place_options
from warpbeam.errors import UserError


def resume(
    run: RunName,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    accelerators: Accelerators = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Go on with a run from its newest checkpoint, with the job as the run has it."""
    from warpbeam.cli.run import carry_out, saying_interrupted
    from warpbeam.job import LoadedJob
    from warpbeam.launch.begin import Request, stored_job
    from warpbeam.launch.own_code import hooks
    from warpbeam.pool import load_pool
    from warpbeam.record.view import find_run
    from warpbeam.spec_file import digest

    view = find_run(open_runs(pool, store), run, team)
    stored = stored_job(view)
    if stored is None:
        raise UserError(
            f"run {view.run!r} does not hold its job", fix="`warpbeam run JOB.yaml` resumes it", reason="no_stored_job"
        )
    job, root = stored
    needs_folder = bool(hooks(job)) or any("://" not in source.path for source in [*job.data.train, *job.data.eval])
    if needs_folder and not root.is_dir():
        raise UserError(
            f"run {view.run!r} needs files of {root}, and that folder is not on this machine",
            why="its job has own code or relative data paths",
            fix="`warpbeam run JOB.yaml` from a copy of that folder",
            reason="no_job_folder",
        )
    loaded = LoadedJob(job=job, path=root / "job.yaml", root=root, digest=digest(job))
    request = Request(loaded, load_pool(pool), accelerators)
    again = f"warpbeam resume {view.run}{place_options(pool, store)}"
    with saying_interrupted(again):
        carry_out(request, again, start_timeout_s=600.0, dry_run=False, yes=True, json=json, force=force, pool=pool)

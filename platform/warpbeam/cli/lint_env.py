"""`warpbeam lint-env`: what is wrong with the environment variables that ranks get, before a launch finds out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from warpbeam.cli.options import Json, OptionalJobFile, Pool
from warpbeam.cli.output import print_json, say
from warpbeam.errors import PlatformError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpbeam.environment.setting import Finding

WIDTH = 10


def lint_env(job: OptionalJobFile = None, pool: Pool = None, json: Json = False) -> None:
    """Check the variables of NCCL, gloo, torch and DeepSpeed against the pool, and this machine where ranks run here.

    Exit code 2 for an error in the job's `env`, 3 for one of the pool's or of this shell; warnings exit with 0.
    """
    from warpbeam.environment.lint import findings, runs_here
    from warpbeam.job import load_job
    from warpbeam.pool import load_pool

    loaded = load_job(job).job if job is not None else None
    file = load_pool(pool).pool
    found = findings(loaded, file, here=runs_here(file))
    if json:
        print_json({"pool": file.name, "findings": [asdict(finding) for finding in found]})
    elif not found:
        say(f"nothing is wrong with the environment of pool {file.name}")
    else:
        for finding in found:
            _show(finding)
    _exit(found)


def _show(finding: Finding) -> None:
    for label, text in ((finding.level, finding.headline), ("why", finding.why), ("do", finding.do)):
        say(f"{label:<{WIDTH}}{text}")
    say("")


def _exit(found: Sequence[Finding]) -> None:
    from warpbeam.environment.setting import JOB, Level

    sources = {finding.source for finding in found if finding.level is Level.ERROR}
    if sources:
        raise typer.Exit((UserError if JOB in sources else PlatformError).exit_code)

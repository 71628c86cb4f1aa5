"""A job names its secrets, the pool says where they are: find the values in this process's surroundings.

Values live in environment variables of the processes that need them and nowhere else: not in the job, not in Ray's
metadata, not in arguments.
"""

from __future__ import annotations

import os
from pathlib import Path

from warpbeam.errors import PlatformError
from warpbeam.job import Job
from warpbeam.pool import Pool


def resolve(job: Job, pool: Pool) -> dict[str, str]:
    """Environment variable -> value for every secret of the job. Raises PlatformError for one that is not there."""
    values = {}
    for secret in job.secrets:
        source = pool.secrets.get(secret.from_)
        if source is None:
            known = ", ".join(sorted(pool.secrets)) or "none"
            raise PlatformError(
                f"the pool `{pool.name}` has no secret `{secret.from_}`",
                why=f"it names: {known}",
                fix=f"in the pool file: `secrets: {{{secret.from_}: {{env: {secret.env}}}}}`",
                reason="unknown_secret",
            )
        value = os.environ.get(source.env) if source.env else _read(source.file or "")
        if not value:
            where = f"environment variable {source.env}" if source.env else f"file {source.file}"
            raise PlatformError(
                f"the secret `{secret.from_}` is not there: {where} is missing or empty",
                fix=f"export {source.env}=... before the command" if source.env else "mount the file",
                reason="missing_secret",
            )
        values[secret.env] = value
    return values


def apply(job: Job, pool: Pool) -> list[str]:
    """Put secrets and plain settings into this process's environment; returns the secret values, to redact."""
    values = resolve(job, pool)
    os.environ.update(values)
    os.environ.update(job.env)
    return list(values.values())


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""

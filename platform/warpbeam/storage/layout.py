"""Where everything lives in a store: every key is built here, and nowhere else (DESIGN section 4).

Prefixes come without a slash at the end: `f"{run_prefix(team, run)}/job.yaml"`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from warpbeam.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SEQ_DIGITS = 12
_STEP_DIGITS = 8
_TIME = "%Y%m%dT%H%M%SZ"


class IndexHint(NamedTuple):
    """A run's state as the name of its index key tells it. A hint for listings: the log wins."""

    run: str
    state: str
    step: int
    at: datetime


def check_name(name: str, what: str = "name") -> str:
    """The name of a team, run, attempt, model or version when it may become a key and a file name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{what} {name!r} cannot be used",
            why="it becomes a key and a file name: letters, digits, dot, underscore and hyphen, at most 100, "
            "beginning with a letter or digit",
            reason="bad_name",
        )
    return name


def team_prefix(team: str) -> str:
    """`teams/<team>`"""
    return f"teams/{check_name(team, 'team')}"


def data_prefix(team: str, fingerprint: str) -> str:
    """Prepared data: parts, their seals, index.json, sources.json."""
    return f"{team_prefix(team)}/data/{check_name(fingerprint, 'fingerprint')}"


def runs_prefix(team: str) -> str:
    """`teams/<team>/runs`: one folder a run."""
    return f"{team_prefix(team)}/runs"


def run_prefix(team: str, run: str) -> str:
    """Everything of one run."""
    return f"{runs_prefix(team)}/{check_name(run, 'run')}"


def log_prefix(team: str, run: str) -> str:
    """The run's append-only log."""
    return f"{run_prefix(team, run)}/log"


def log_key(team: str, run: str, seq: int) -> str:
    """Entry `seq` (from 0, without gaps) of the run's log."""
    return f"{log_prefix(team, run)}/{_digits(seq, _SEQ_DIGITS, 'seq')}"


def parse_log_key(key: str) -> int | None:
    """The `seq` of a log entry's key (or of its last segment); None for anything else."""
    name = key.rpartition("/")[2]
    return int(name) if len(name) == _SEQ_DIGITS and name.isascii() and name.isdigit() else None


def checkpoints_prefix(team: str, run: str) -> str:
    """All checkpoints of a run, committed or not; trust the log, not a listing."""
    return f"{run_prefix(team, run)}/checkpoints"


def checkpoint_prefix(team: str, run: str, step: int, attempt: str) -> str:
    """One checkpoint's shards and manifest.json; written by one attempt, never overwritten."""
    return f"{checkpoints_prefix(team, run)}/{_digits(step, _STEP_DIGITS, 'step')}/{check_name(attempt, 'attempt')}"


def records_prefix(team: str, run: str) -> str:
    """The records of all attempts: one folder an attempt."""
    return f"{run_prefix(team, run)}/record"


def record_prefix(team: str, run: str, attempt: str) -> str:
    """One attempt's events, metrics, logs and heartbeats."""
    return f"{records_prefix(team, run)}/{check_name(attempt, 'attempt')}"


def heartbeat_key(team: str, run: str, attempt: str, who: str) -> str:
    """The last sign of life of a driver or rank; its age is what counts."""
    return f"{record_prefix(team, run, attempt)}/heartbeat/{check_name(who, 'process')}.json"


def run_model_prefix(team: str, run: str) -> str:
    """The model's small files (config, tokenizer, chat template), written before the first step."""
    return f"{run_prefix(team, run)}/model"


def submitted_prefix(team: str, run: str) -> str:
    """Written once by the submitter: who, when, job, bundle."""
    return f"{run_prefix(team, run)}/submitted"


def bundle_key(team: str, digest: str) -> str:
    """A packed working folder by its content, for pods that fetch it themselves."""
    return f"{team_prefix(team)}/bundles/{check_name(digest, 'digest')}.zip"


def models_prefix(team: str) -> str:
    """The team's exported models: one folder a name, one below it a version."""
    return f"{team_prefix(team)}/models"


def model_prefix(team: str, name: str, version: str) -> str:
    """One exported model: safetensors, tokenizer, chat template, lineage."""
    return f"{models_prefix(team)}/{check_name(name, 'model')}/{check_name(version, 'version')}"


def index_prefix(team: str) -> str:
    """Hints from which thousands of runs are listed at once."""
    return f"{team_prefix(team)}/index"


def index_key(team: str, run: str, state: str, step: int, at: float) -> str:
    """`teams/<team>/index/<run>/<state>,<step>,<time>`; `at` is unix time in seconds."""
    if step < 0:
        raise ValueError(f"step must not be negative, got {step}")
    moment = datetime.fromtimestamp(at, UTC).strftime(_TIME)
    return f"{index_prefix(team)}/{check_name(run, 'run')}/{check_name(state, 'state')},{step},{moment}"


def parse_index_key(key: str) -> IndexHint | None:
    """What an index key says; None when it is not one."""
    folder, _, name = key.rpartition("/")
    parts = name.split(",")
    if len(parts) != 3 or not parts[1].isdigit():
        return None
    try:
        at = datetime.strptime(parts[2], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return IndexHint(folder.rpartition("/")[2], parts[0], int(parts[1]), at)


def pool_prefix(pool: str) -> str:
    """A pool's exclusions and holds."""
    return f"pools/{check_name(pool, 'pool')}"


def preflight_key(pool: str, name: str) -> str:
    """What a preflight sends and fetches back; deleted at once."""
    return f"{pool_prefix(pool)}/preflight/{check_name(name, 'name')}"


def _digits(value: int, digits: int, what: str) -> str:
    if not 0 <= value < 10**digits:
        raise ValueError(f"{what} must be in [0, 10**{digits}), got {value}")
    return f"{value:0{digits}d}"

"""What runs in each of Ray Train's workers: catch its output, import the engine while data is prepared, train.

The worker says that it is there before it imports anything heavy, then waits for the driver's word (`go.json` in the
attempt's record) that the data of its first steps is sealed. Whatever goes wrong leaves as one `RankError` that
pickles.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.members import this_process
from warpbeam.errors import WarpbeamError
from warpbeam.launch import secrets
from warpbeam.launch.spares import keep_spares
from warpbeam.precedence import stand_in_front
from warpbeam.record import keys
from warpbeam.record.capture import Capture
from warpbeam.record.writer import STEP_DIR_VARIABLE
from warpbeam.storage.layout import heartbeat_key
from warpbeam.storage.patience import PatientStore
from warpbeam.train.diagnostics import Stacks, switch_on
from warpbeam.version_contract import hold_to
from warpbeam.versions import installed_versions

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

JOINING = "joining"
"""The phase of a worker that waits for its peers to make a process group."""
POLL_S = 0.2
SCHEMA = "warpbeam/attempt/v1"
_stacks: dict[int, Stacks] = {}
"""Of this process's rank, from before it joins the others until it trains."""


@dataclass(frozen=True)
class RankTask:
    """What a worker is told; JSON-able, holds no secret.

    Args:
        spec: the engine's RunSpec as JSON; its data places are filled in when the driver says go.
        root: the job file's folder on the driver's machine.
        bundle_root: the folder of the command there; on another machine both lie in the worker's own working folder.
        log_dir: local folder for captured output.
        threads: CPU threads of one rank.
        contract: package -> version that the pool says is here; empty where ranks run in no image of the pool's.
    """

    team: str
    run: str
    attempt: str
    spec: str
    root: str
    bundle_root: str
    log_dir: str
    threads: int
    contract: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class RankError(Exception):
    """What ended one rank, in plain values; `error` is set when it was one of our own."""

    def __init__(self, facts: dict[str, Any], error: WarpbeamError | None = None) -> None:
        super().__init__(facts, error)
        self.facts = facts
        self.error = error

    def __str__(self) -> str:
        return f"rank {self.facts['rank']}: {self.facts['type']}: {self.facts['message']}"


def rank_main(task_dict: dict[str, Any]) -> None:
    """Ray Train's train loop for one worker."""
    stand_in_front()
    task = RankTask(**task_dict)
    rank = int(os.environ["RANK"])
    who = f"rank-{rank}"
    root = _enter_bundle(task)
    spec = json.loads(task.spec)
    hidden = _take_environment(spec)
    os.environ[STEP_DIR_VARIABLE] = task.log_dir
    plain = _open_store(spec)
    store = PatientStore(plain)
    stacks = _stacks.pop(rank)
    stacks.note_environment()
    store.put(heartbeat_key(task.team, task.run, task.attempt, who), _first_beat(task, who, "start"))
    with Capture(plain, task.team, task.run, task.attempt, who, Path(task.log_dir), secrets=hidden):
        try:
            _train(task, store, spec | {"root": str(root)}, rank, stacks)
        except BaseException as error:
            raise describe(error, rank, [root, Path(os.getcwd())]) from None
    stacks.remove()


def before_joining(task_dict: dict[str, Any], rank: int, *, nccl: bool) -> None:
    """In each worker, before the process group is made: the job's variables, which gloo and torch read then and which
    on a cluster that was joined nobody else has set; what `train.diagnostics` switches on; and a first sign of life,
    so that a rank that never joins can be told from one that was never there. What fails here fails again, and is told,
    where it is needed."""
    task = RankTask(**task_dict)
    spec = json.loads(task.spec)
    with suppress(Exception):
        _take_environment(spec)
    _stacks[rank] = switch_on(task.log_dir, rank, nccl=nccl)
    with suppress(Exception):
        beat = _first_beat(task, f"rank-{rank}", JOINING)
        _open_store(spec).put(heartbeat_key(task.team, task.run, task.attempt, f"rank-{rank}"), beat)


def describe(error: BaseException, rank: int, own_folders: list[Path]) -> RankError:
    """An exception as plain values; prints its traceback, so that the record has it."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, end="", flush=True)
    facts = {
        "rank": rank,
        "at": time.time(),
        "type": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "frames": _own_frames(error, own_folders),
    }
    return RankError(facts, error if isinstance(error, WarpbeamError) else None)


def _train(task: RankTask, store: ObjectStore, spec: dict[str, Any], rank: int, stacks: Stacks) -> None:
    from warpbeam.train.worker import RunSpec, run_rank

    if task.contract:
        hold_to(task.contract, installed_versions(), f"rank {rank}'s pod")
    import_engine(spec["plan"]["strategy"])
    go = _wait_for_go(task, store)
    if go is None:
        return
    keep_spares(spec["job"]["train"]["spares_after_s"])
    outcome = run_rank(RunSpec(**spec | go), on_late=stacks.write)
    if rank == 0:
        result = {"schema": SCHEMA, "state": outcome.state, "step": outcome.step, "metrics": outcome.metrics}
        store.put(keys.outcome(task.team, task.run, task.attempt), json.dumps(result, default=str).encode())


def import_engine(strategy: str) -> None:
    """Import now, while data is prepared, what the engine will want at its first step."""
    for name in ("transformers.modeling_utils", *(("deepspeed",) if strategy.startswith("zero") else ())):
        importlib.import_module(name)


def _wait_for_go(task: RankTask, store: ObjectStore) -> dict[str, Any] | None:
    """What the driver adds to the spec; None when the attempt is called off. A dead driver takes its workers along."""
    key = keys.go(task.team, task.run, task.attempt)
    while store.head(key) is None:
        time.sleep(POLL_S)
    go: dict[str, Any] = json.loads(store.get(key))
    return go["spec"] if go["go"] else None


def _enter_bundle(task: RankTask) -> Path:
    """Make own code importable; returns the job file's folder as it is on this machine."""
    bundle, root = Path(task.bundle_root), Path(task.root)
    if not root.is_dir() and root.is_relative_to(bundle):
        root = Path(os.getcwd()) / root.relative_to(bundle)
        bundle = Path(os.getcwd())
    for folder in (str(bundle), str(root)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    import torch  # Ray Train's process group has imported it already

    torch.set_num_threads(task.threads)
    return root


def _take_environment(spec: dict[str, Any]) -> list[str]:
    from warpbeam.job import parse_job
    from warpbeam.pool import parse_pool

    return secrets.apply(parse_job(spec["job"]), parse_pool(spec["pool"]))


def _open_store(spec: dict[str, Any]) -> ObjectStore:
    from warpbeam.storage import StorageConfig, open_store

    return open_store(StorageConfig.from_dict(spec["storage"]))


def _first_beat(task: RankTask, who: str, phase: str) -> bytes:
    beat = {"schema": "warpbeam/record/v1", **this_process(who).to_dict(), "attempt": task.attempt}
    return json.dumps({**beat, "step": 0, "phase": phase, "ended": False, "at": time.time()}).encode()


def _own_frames(error: BaseException, folders: list[Path]) -> list[dict[str, Any]]:
    """The traceback's frames that lie in the user's own files, outermost first."""
    library = Path(__file__).resolve().parents[1]
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        inside = any(path.is_relative_to(folder) for folder in folders)
        if inside and "site-packages" not in path.parts and not path.is_relative_to(library):
            found.append({"file": frame.filename, "line": frame.lineno, "name": frame.name, "text": frame.line or ""})
    return found

"""What must hold after any number of faults: the steps, the checkpoints and what is left in the store."""

from __future__ import annotations

from dataclasses import dataclass

from warpbeam.checkpoint.log import RunLog, live_commits
from warpbeam.checkpoint.members import this_process
from warpbeam.checkpoint.retention import sweep
from warpbeam.checkpoint.verify import verify_commit
from warpbeam.launch.certificate import Verdict, compare
from warpbeam.record.view import RunView
from warpbeam.storage import layout
from warpbeam.storage.store import ObjectStore


@dataclass(frozen=True)
class Proof:
    """After the last fault.

    Args:
        verdict: every row of the run held against the undisturbed run's.
        corrupt: what is wrong with committed checkpoints.
        uncommitted: objects of saves that faults broke off, before the next sweep.
        orphaned: those that the sweep has left.
    """

    verdict: Verdict
    corrupt: list[str]
    uncommitted: int
    orphaned: list[str]

    @property
    def holds(self) -> bool:
        return self.verdict.equal and not self.corrupt and not self.orphaned


def prove(rough: RunView, calm: RunView, ranks: int) -> Proof:
    """Look at both runs in the store; the disturbed one must have ended."""
    ranks_of = {name: int((rough.facts(name) or {})["plan"]["world_size"]) for name in rough.attempts()}
    last = max(int(row["step"]) for row in calm.all_metrics())
    rows = [row for row in rough.all_metrics() if int(row["step"]) <= last]
    verdict = compare(calm.all_metrics(), rows, ranks_of, ranks)
    log = rough.log
    faults = [fault for commit in live_commits(log.read()) for fault in verify_commit(rough.store, commit).faults]
    before = _unreferenced(rough.store, log)
    claim = log.claim("9999-sweep", [this_process("driver")])
    sweep(rough.store, claim, ttl_s=0)
    return Proof(verdict, faults, len(before), _unreferenced(rough.store, log))


def _unreferenced(store: ObjectStore, log: RunLog) -> list[str]:
    """Objects below the run's checkpoints that no live commit speaks for."""
    live = {(commit.manifest or "").rpartition("/")[0] for commit in live_commits(log.read())}
    found = store.list(layout.checkpoints_prefix(log.team, log.run) + "/")
    return [info.key for info in found if info.key.rpartition("/")[0] not in live]

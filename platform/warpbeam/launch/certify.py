"""Run a job twice, short: once in peace, once killed and resized at random steps; then compare.

Both legs go through the same command as a user's (`warpbeam run`), in processes of their own, on this machine. The
steps at which something is killed come from a seed; which process it is takes turns: a rank, then the driver. After a
driver's death the same command is given again, with the next number of ranks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from warpbeam.checkpoint.log import newest_claim
from warpbeam.checkpoint.members import Member
from warpbeam.errors import RunFailed, UserError
from warpbeam.job import LoadedJob, parse_job
from warpbeam.launch.certificate import Row, Verdict, compare
from warpbeam.launch.local_logs import log_dir
from warpbeam.record.stop import members
from warpbeam.record.view import RunView
from warpbeam.record.writer import read_steps
from warpbeam.storage.store import ObjectStore

POLL_S: Final = 0.02
LEG_TIMEOUT_S: Final = 3600.0
TEAM: Final = "certify"


@dataclass(frozen=True)
class Asked:
    """What to do to the run.

    Args:
        steps: of both legs.
        every: steps between two checkpoints.
        kills: how many processes to kill.
        worlds: numbers of ranks, one after the other; the first is the undisturbed leg's.
        seed: of the steps at which it happens.
    """

    steps: int
    every: int
    kills: int
    worlds: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Kill:
    """One process that was killed, after which step it had reported."""

    step: int
    role: str
    ranks: int


@dataclass(frozen=True)
class Certified:
    """Both legs and what the comparison says."""

    asked: Asked
    kills: tuple[Kill, ...]
    verdict: Verdict
    undisturbed: Sequence[Row]
    disturbed: Sequence[Row]
    attempts: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "asked": asdict(self.asked),
            "kills": [asdict(kill) for kill in self.kills],
            "attempts": self.attempts,
            "verdict": self.verdict.to_dict(),
        }


def certify(
    loaded: LoadedJob, store: ObjectStore, pool: str | None, asked: Asked, say: Callable[[str], None]
) -> Certified:
    """Run both legs and compare them. Takes minutes: every kill costs a start.

    Raises:
        UserError: the job cannot be certified as it is asked for.
        RunFailed: a leg failed by itself.
    """
    nonce = f"{time.time_ns() // 1_000_000 % 10**9:09d}"
    calm = _Leg(loaded, store, pool, asked, f"{loaded.job.name[:40]}-{nonce}-calm")
    rough = _Leg(loaded, store, pool, asked, f"{loaded.job.name[:40]}-{nonce}-rough")
    say(f"undisturbed: {asked.steps} steps on {asked.worlds[0]} rank(s)")
    with calm.job_file() as path:
        calm.finish(path, asked.worlds[0])
    kills: list[Kill] = []
    with rough.job_file() as path:
        rough.disturb(path, kills, say)
    ranks_of = {name: int((rough.view.facts(name) or {})["plan"]["world_size"]) for name in rough.view.attempts()}
    undisturbed, disturbed = calm.view.all_metrics(), rough.view.all_metrics()
    verdict = compare(undisturbed, disturbed, ranks_of, asked.worlds[0])
    return Certified(asked, tuple(kills), verdict, undisturbed, disturbed, len(ranks_of))


def plan_kills(asked: Asked) -> list[int]:
    """The steps after which something is killed, ascending: in the part in which steps are left to repeat. Pure."""
    room = range(2, max(3, asked.steps - 2))
    if asked.kills > len(room):
        raise UserError(
            f"{asked.kills} kills do not fit into {asked.steps} steps",
            fix=f"--steps {asked.kills + 6} or more",
            reason="too_many_kills",
        )
    return sorted(random.Random(asked.seed).sample(room, asked.kills))


class _Leg:
    """One of the two runs: a job file beside the user's own, and the command that runs it."""

    def __init__(self, loaded: LoadedJob, store: ObjectStore, pool: str | None, asked: Asked, name: str) -> None:
        self._loaded = loaded
        self._pool = pool
        self._asked = asked
        self.name = name
        self.view = RunView(store, TEAM, name)

    @contextmanager
    def job_file(self) -> Iterator[Path]:
        """The user's job, shorter and under another name; its paths start at the same folder."""
        content = self._loaded.job.to_dict()
        content |= {"name": self.name, "team": TEAM}
        content["train"] |= {"max_steps": self._asked.steps, "epochs": None}
        content["checkpoint"] |= {"every_steps": self._asked.every, "keep": 2}
        content["resources"] |= {"accelerators": self._asked.worlds[0]}
        parse_job(content)
        path = self._loaded.root / f".{self.name}.yaml"
        path.write_text(json.dumps(content))  # JSON is YAML
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def finish(self, path: Path, ranks: int) -> None:
        """Run to the end."""
        process = self._start(path, ranks)
        try:
            code = process.wait(LEG_TIMEOUT_S)
        finally:
            _end(process)
        if code != 0:
            raise self._failed(code)

    def disturb(self, path: Path, kills: list[Kill], say: Callable[[str], None]) -> None:
        """Run to the end, however often it is killed on the way."""
        worlds = list(self._asked.worlds)
        process = self._start(path, worlds[0])
        try:
            for number, step in enumerate(plan_kills(self._asked)):
                if not self._reached(process, step):
                    say(f"it ended before all of the {self._asked.kills} kills: more --steps leave room for them")
                    break
                role = "driver" if number % 2 or len(worlds) > 1 else "rank"
                victim = self._victim(role, number)
                kills.append(Kill(self._step(), victim.role, worlds[0]))
                victim.kill()
                say(f"killed {victim.role} after step {kills[-1].step} of {self._asked.steps}")
                if role == "driver":
                    process.wait(60)
                    worlds = worlds[1:] or worlds
                    process = self._start(path, worlds[0])
            code = process.wait(LEG_TIMEOUT_S)
        finally:
            _end(process)
        if code != 0:
            raise self._failed(code)

    def _start(self, path: Path, ranks: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "warpbeam.cli.main", "run", str(path), "--yes", "--accelerators", str(ranks)]
        command += ["--pool", self._pool] if self._pool else []
        with self._log().open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _log(self) -> Path:
        folder = log_dir((TEAM, self.name, "certify"))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / "command.log"

    def _reached(self, process: subprocess.Popen[bytes], step: int) -> bool:
        """Wait until a rank of the newest attempt reports this step; False when the run ended before."""
        while process.poll() is None:
            if self._step() >= step:
                return True
            time.sleep(POLL_S)
        return False

    def _step(self) -> int:
        """By what ranks leave on this machine's disk, which is never behind."""
        attempts = self.view.attempts()
        steps = read_steps(log_dir((TEAM, self.name, attempts[-1]))) if attempts else {}
        return max(steps.values(), default=0)

    def _victim(self, role: str, number: int) -> Member:
        claim = newest_claim(self.view.log.read())
        assert claim is not None
        found = {member.role: member for member in members(self.view, claim.attempt)}
        if role == "driver":
            return found["driver"]
        ranks = sorted(name for name in found if name.startswith("rank-"))
        return found[ranks[number // 2 % len(ranks)]]

    def _failed(self, code: int) -> RunFailed:
        return RunFailed(
            f"run {self.name} failed by itself (exit code {code})",
            why=self._log().read_text(errors="replace")[-1500:],
            fix=f"warpbeam logs {TEAM}/{self.name}",
            reason="leg_failed",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind when the certificate itself is broken off."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def settle(loaded: LoadedJob, ranks: int, kills: int, worlds: Sequence[int], steps: int, seed: int) -> Asked:
    """What was asked for, made whole; refuses what cannot be."""
    chain = tuple(worlds) or (ranks,)
    batch = loaded.job.train.global_batch
    for world in chain:
        if batch % world:
            raise UserError(
                f"--worlds {world}: train.global_batch {batch} does not divide by it",
                fix=f"numbers that divide {batch}",
                reason="batch_does_not_divide",
            )
    asked = Asked(steps, max(1, steps // 8), max(kills, len(chain) - 1), chain, seed)
    plan_kills(asked)
    return asked

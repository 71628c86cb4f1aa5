"""Sixteen ranks and one fault at a time: `python -m tests.integration.preflight_drill` (root, 8 minutes) prints who was
named, and how long it took. Exit code 1 where it was not the right one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.preflight_faults import conducted, cut, signal_rank, throttled, unplug
from warpbeam.preflight.ask import DRILL_S, Ask
from warpbeam.preflight.local import LocalCrew
from warpbeam.preflight.measured import Measured
from warpbeam.preflight.namespaces import DrillNode, Namespaces

RANKS = 16
WHOLE_S, QUICK_WHOLE_S = 120.0, 60.0
SLOW, STILL, DEAD, LATE = 11, 5, 9, 14


@dataclass(frozen=True)
class Case:
    """One drill: what is broken, and who is to be named; nobody for a healthy one."""

    name: str
    run: Callable[[], list[str]]
    named: list[str]
    within_s: float = WHOLE_S


def named(
    nodes: int,
    break_it: Callable[[list[DrillNode]], None] = lambda nodes: None,
    at: str = "",
    fault: Callable[[Measured], None] = lambda measured: None,
    join_s: float = 60.0,
    before: Callable[[LocalCrew], None] = lambda crew: None,
) -> list[str]:
    """Whom sixteen ranks on so many nodes name."""
    with Namespaces(nodes) as made:
        break_it(made)
        crew = LocalCrew(RANKS, made)
        before(crew)
        asked = Ask(budget_s=DRILL_S, join_s=join_s, link_s=5.0)
        _, verdict = conducted(crew, asked, at, fault)
    return [suspect.where for suspect in verdict.suspects]


def healthy(*words: str) -> list[str]:
    """The command itself, table and all."""
    command = [sys.executable, "-m", "warpbeam.cli.main", "preflight", "--local", str(RANKS), *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(done.stdout, done.stderr, flush=True)
    return [] if done.returncode == 0 else [f"exit code {done.returncode}"]


def slow() -> list[str]:
    with throttled(0.1, f"wbpf-{os.getpid()}") as put:
        return named(2, at="machines", fault=lambda measured: put(measured.by_rank()[SLOW].pid))


def late(crew: LocalCrew) -> None:
    os.mkfifo(crew.folder / f"rank-{LATE}.log")


CASES = (
    Case("healthy, quick", lambda: healthy("--quick"), [], QUICK_WHOLE_S),
    Case("healthy", healthy, []),
    Case("a rank with a tenth of a core", slow, [f"rank {SLOW}"]),
    Case("cut between two of four nodes", lambda: named(4, lambda n: cut(n[1], n[3])), ["nodes node-1 and node-3"]),
    Case("cut between the two nodes", lambda: named(2, lambda n: cut(n[0], n[1])), ["nodes node-0 and node-1"]),
    Case("one interface of four down", lambda: named(4, lambda n: unplug(n[2])), ["node node-2"]),
    Case(
        "a rank stands still (SIGSTOP)",
        lambda: named(2, at="links", fault=lambda m: signal_rank(m, STILL, signal.SIGSTOP)),
        [f"rank {STILL}"],
    ),
    Case(
        "a rank is killed",
        lambda: named(2, at="reduce-scatter", fault=lambda m: signal_rank(m, DEAD, signal.SIGKILL)),
        [f"rank {DEAD}"],
    ),
    Case("a rank never joins", lambda: named(2, join_s=30.0, before=late), [f"rank {LATE}"]),
)


def main() -> int:
    """Run the cases; returns the exit code."""
    wrong, lines = 0, []
    for case in CASES:
        began = time.monotonic()
        found = case.run()
        spent_s = time.monotonic() - began
        right = found == case.named and spent_s < case.within_s
        wrong += not right
        lines.append(f"{case.name:<34}{', '.join(found) or 'nobody':<28}{spent_s:6.1f} s  {'' if right else 'WRONG'}")
        print(lines[-1], flush=True)
    print(f"\n{'fault':<34}{'named':<28}{'took':>8}")
    print("\n".join(lines))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

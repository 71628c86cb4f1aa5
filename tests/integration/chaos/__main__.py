"""Many faults in one run on a cluster of two nodes: `python -m tests.integration.chaos N [--seed S]`.

Prints each fault as it happens, then a table, and what must hold: every step as in an undisturbed run, no corrupt
checkpoint, no orphaned object. Exit code 1 when something does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, get_args

from rich.console import Console
from rich.table import Table

from tests.integration.chaos.faults import Kind, schedule
from tests.integration.chaos.proof import Proof, prove
from tests.integration.chaos.scene import EVERY_STEPS, Outcome, Scene

MOST_LOST: Final = 2 * EVERY_STEPS
"""The interval, and the steps taken while the next checkpoint was on its way: it is waited for at the one after it."""


def main() -> int:
    """0: all of it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--strategy", default="zero3")
    options = parser.parse_args()
    print(f"{options.count} faults, seed {options.seed}, {options.strategy}", flush=True)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        Scene(Path(folder), own_ray=False, strategy=options.strategy) as scene,
    ):
        scene.begin("rough")
        for number, fault in enumerate(schedule(options.count, options.seed), start=1):
            outcomes.append(scene.inject(fault))
            left_s = (time.monotonic() - began) / number * (options.count - number)
            print(f"{number}/{options.count} {line(outcomes[-1])}; {left_s / 60:.0f} min left", flush=True)
        last = scene.stop()
        print(f"stopped after step {last}; the same steps undisturbed", flush=True)
        scene.repeat_undisturbed("calm", last)
        proof = prove(scene.view("rough"), scene.view("calm"), ranks=2)
    Console(width=120).print(table(outcomes))
    return report(outcomes, proof)


def line(outcome: Outcome) -> str:
    """One fault and what followed."""
    again = f", the command {outcome.commands} times again" if outcome.commands else ""
    return f"{outcome.fault}: {outcome.lost} steps lost, {outcome.back_s:.1f} s{again}"


def table(outcomes: Iterable[Outcome]) -> Table:
    """A row for each kind of fault."""
    found = Table("fault", "injected", "resumed", "steps lost: median", "worst", "to the next step, s: median", "worst")
    everything = list(outcomes)
    for kind in get_args(Kind):
        own = [outcome for outcome in everything if outcome.fault.kind == kind]
        if own:
            lost, back = [outcome.lost for outcome in own], [outcome.back_s for outcome in own]
            numbers = [statistics.median(lost), max(lost), f"{statistics.median(back):.1f}", f"{max(back):.1f}"]
            found.add_row(kind, str(len(own)), str(len(own)), *map(str, numbers))
    return found


def report(outcomes: Iterable[Outcome], proof: Proof) -> int:
    """Print what must hold; 0 when it does."""
    too_many = [outcome for outcome in outcomes if not 0 <= outcome.lost <= MOST_LOST]
    verdict = proof.verdict
    print(f"steps compared with the undisturbed run: {verdict.compared}, first difference: {verdict.difference}")
    print(f"faults that cost more than {MOST_LOST} steps: {len(too_many)}", *map(line, too_many))
    print(f"corrupt checkpoints: {len(proof.corrupt)}", *proof.corrupt)
    print(f"objects of broken-off saves: {proof.uncommitted}; orphaned after the sweep: {len(proof.orphaned)}")
    return 0 if proof.holds and not too_many else 1


if __name__ == "__main__":
    sys.exit(main())

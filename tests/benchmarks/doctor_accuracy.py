"""How often the doctor is right on failures whose cause is known.

    python -m tests.benchmarks.doctor_accuracy CASES.jsonl [--predictions OUT.jsonl]

A line of CASES.jsonl has `id`, the answer (`kind`, `owner`, `faulty_rank_or_node`) and `evidence`, a list of `where`,
`text`, `basis` and `machine_collectable`. The doctor sees `where` and `text` alone. Everything is measured twice, with
and without what no machine could have collected; the predictions are those with all evidence. Cases whose evidence is
all reconstructed are also counted apart.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpbeam.doctor.diagnose import diagnose_texts
from warpbeam.doctor.order import HIGH


@dataclass(frozen=True)
class Result:
    """One case and what the doctor said; `kind` None is "unknown"."""

    case: dict[str, Any]
    kind: str | None
    owner: str
    where: str
    cause: str
    confidence: float
    rule: str | None
    seconds: float

    @property
    def right_kind(self) -> bool:
        return self.kind == self.case["kind"]

    @property
    def right_owner(self) -> bool:
        return self.owner == self.case["owner"]

    @property
    def wrong_blame(self) -> bool:
        """A kind or an owner was named, and is wrong."""
        return self.kind is not None and not (self.right_kind and self.right_owner)

    @property
    def right_place(self) -> bool | None:
        """None where the case names no single rank, node or pod."""
        named = re.search(
            r"\brank (\d+)\b(?!\.\.)|\b((?:node|host)-\w+|[\w-]+-\d+)\b", str(self.case["faulty_rank_or_node"])
        )
        if named is None:
            return None
        return self.where.split(" ", 1)[-1] == (named[1] or named[2])

    def prediction(self) -> dict[str, Any]:
        """What `--predictions` writes."""
        names = ("kind", "owner", "where", "cause", "confidence", "rule", "seconds")
        return {"id": self.case["id"], **{name: getattr(self, name) for name in names}}


def examine(case: dict[str, Any], *, machine_only: bool) -> Result:
    """Ask the doctor, showing it nothing but places and texts."""
    shown = [
        (str(item["where"]), str(item["text"]))
        for item in case["evidence"]
        if item.get("machine_collectable", True) or not machine_only
    ]
    began = time.perf_counter()
    first = diagnose_texts(shown).first
    took = time.perf_counter() - began
    if first is None:
        return Result(case, None, "unknown", "job", "unknown", 0.0, None, took)
    return Result(case, first.kind, first.owner, first.where, first.cause, first.confidence, first.rule, took)


def report(title: str, results: list[Result]) -> None:
    """Print one table."""
    if not results:
        return
    places = [result.right_place for result in results if result.right_place is not None]
    wrong = [result for result in results if result.wrong_blame]
    rows = [
        ("right cause", sum(result.right_kind for result in results), len(results)),
        ("right owner", sum(result.right_owner for result in results), len(results)),
        ("right rank or node", sum(places), len(places)),
        ("unknown", sum(result.kind is None for result in results), len(results)),
        ("wrong blame", len(wrong), len(results)),
        (f"wrong blame at {HIGH} up", sum(result.confidence >= HIGH for result in wrong), len(results)),
    ]
    print(f"\n{title}: {len(results)} cases")
    for name, count, total in rows:
        print(f"  {name:<24}{count:>4} of {total:<4}{100 * count / max(1, total):5.1f}%")
    slowest = max(results, key=lambda result: result.seconds)
    print(f"  time per case: median {_median(results) * 1e3:.1f} ms, slowest {slowest.seconds * 1e3:.1f} ms")
    for kind, count in Counter(result.case["kind"] for result in wrong).most_common():
        said = ", ".join(f"{r.kind}/{r.owner} ({r.rule}, {r.confidence:.2f})" for r in wrong if r.case["kind"] == kind)
        print(f"  wrong blame where it was {kind}: {count}: {said}")


def _median(results: list[Result]) -> float:
    return sorted(result.seconds for result in results)[len(results) // 2]


def reconstructed_only(case: dict[str, Any]) -> bool:
    """Whether no item of the evidence is quoted or told."""
    return all(item.get("basis") == "reconstructed" for item in case["evidence"])


def load(path: Path) -> list[dict[str, Any]]:
    """The cases of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--predictions", type=Path)
    asked = parser.parse_args(list(arguments) if arguments is not None else None)
    cases = load(asked.cases)
    diagnose_texts([("log", ""), ("pod status", "")])  # the matchers are compiled once a process, not once a case
    everything = [examine(case, machine_only=False) for case in cases]
    report("all evidence", everything)
    report("what a machine can collect", [examine(case, machine_only=True) for case in cases])
    report("reconstructed evidence only", [result for result in everything if reconstructed_only(result.case)])
    if asked.predictions:
        asked.predictions.write_text("".join(json.dumps(result.prediction()) + "\n" for result in everything))


if __name__ == "__main__":
    main()

"""The doctor's answer for people, for programs, and what a rule or a kind means."""

from __future__ import annotations

import re
from typing import Any

from warpbeam.doctor.collect import Collected
from warpbeam.doctor.diagnose import Answer
from warpbeam.doctor.facts import Fact
from warpbeam.doctor.kinds import PAGES, Kind
from warpbeam.doctor.order import HIGH
from warpbeam.doctor.rule import Finding, Rule
from warpbeam.doctor.rules import RULES

SHOWN_TEXT = 200
SHOWN_FACTS = 2
TEAMS = {"ml": "ML team", "platform": "platform team", "infra": "infra", "unknown": "unknown"}
RETRY = {"useless": "no use before the fix", "may help": "may help"}


def lines(answer: Answer, read: Collected, where_read: str) -> list[tuple[str, str]]:
    """(label, text) pairs of the answer, for a terminal."""
    if answer.first is None:
        return _no_cause(answer, read, where_read)
    first = answer.first
    found = [
        ("cause", first.cause),
        ("where", first.where + (f"        first seen {clock(first.at_s)}" if first.at_s is not None else "")),
        ("owner", TEAMS[first.owner]),
        ("evidence", " · ".join(quote(fact) for fact in _apart(first.evidence))),
    ]
    found += [("not it", f"{told}: consequence") for told in answer.not_it]
    found += [("also", f"{other.cause} ({other.where}, {other.confidence:.2f})") for other in answer.others[:3]]
    found += [
        ("do", first.do),
        ("retry", RETRY[first.retry]),
        ("sure", f"{first.confidence:.2f}{' (high)' if first.confidence >= HIGH else ''}"),
        ("more", f"warpbeam doctor --explain {first.rule}"),
    ]
    return found


def _no_cause(answer: Answer, read: Collected, where_read: str) -> list[tuple[str, str]]:
    looked = f"{read.files} files of {where_read}"
    if not answer.trouble:
        return [("healthy", f"nothing went wrong in {looked}")]
    found = [("unknown", f"something went wrong, and nothing in {looked} says why")]
    found += [("seen", quote(fact)) for fact in _apart(answer.seen)]
    found += [("not it", f"{told}: consequence") for told in answer.not_it]
    return [*found, ("do", "read the first lines above where they were written; add the logs of the missing ranks")]


def to_json(answer: Answer, read: Collected) -> dict[str, Any]:
    """The answer for programs: `answer` is cause, healthy or unknown."""
    verdict = "cause" if answer.first else "unknown" if answer.trouble else "healthy"
    return {
        "answer": verdict,
        "finding": _finding(answer.first) if answer.first else None,
        "others": [_finding(other) for other in answer.others],
        "not_it": list(answer.not_it),
        "read": {"files": read.files, "bytes": read.size, "left_out": read.left_out},
    }


def explain(rule: Rule) -> list[tuple[str, str]]:
    """What one rule means, how to confirm it by hand, the fix."""
    page = PAGES[rule.kind]
    return [
        ("rule", rule.name),
        ("kind", rule.kind),
        ("cause", _general(rule.cause)),
        ("owner", TEAMS[rule.owner]),
        ("meaning", page.meaning),
        ("confirm", page.confirm),
        ("do", rule.do),
        ("for good", page.fix),
        ("retry", RETRY[rule.retry]),
    ]


def rules_of(kind: Kind) -> list[Rule]:
    """All rules that end in this kind."""
    return [rule for rule in RULES if rule.kind == kind]


def page(kind: Kind) -> str:
    """The runbook of a kind, in Markdown: the one source of infra/runbooks/."""
    about = PAGES[kind]
    text = [
        f"# {kind}",
        "",
        about.meaning,
        "",
        "## Confirm by hand",
        "",
        about.confirm,
        "",
        "## Fix",
        "",
        about.fix,
        "",
    ]
    text += ["## What the doctor recognises", "", "| rule | cause | owner | do | retry |", "|---|---|---|---|---|"]
    text += [
        f"| `{rule.name}` | {_cell(_general(rule.cause))} | {rule.owner} | {_cell(rule.do)} | {RETRY[rule.retry]} |"
        for rule in rules_of(kind)
    ]
    return "\n".join(text) + "\n"


def quote(fact: Fact) -> str:
    """Whose line, and the line; control letters, which a terminal would obey, are not passed on."""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(fact.text.split()))
    shown = text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..."
    return f'{fact.source.where}: "{shown}"'


def clock(at_s: float) -> str:
    """`12:04:07`, as the line's own clock said."""
    rest = int(at_s) % 86_400
    return f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _apart(facts: tuple[Fact, ...]) -> list[Fact]:
    by_text = {fact.text: fact for fact in reversed(facts)}
    return [fact for fact in facts if by_text[fact.text] is fact][:SHOWN_FACTS]


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "kind": found.kind,
        "owner": found.owner,
        "cause": found.cause,
        "where": found.where,
        "do": found.do,
        "retry": found.retry,
        "confidence": round(found.confidence, 3),
        "evidence": [{"where": fact.source.where, "text": fact.text} for fact in found.evidence],
    }


def _general(cause: str) -> str:
    """A cause whose words are not known yet: `{what}` becomes `WHAT`."""
    return re.sub(r"\{(\w+)\}", lambda word: word[1].upper(), cause)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

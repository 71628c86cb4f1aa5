"""The flight recorder's dumps: which collective the ranks disagree about first, and which rank is not there.

A dump is a pickle that some process wrote, so it is read by an unpickler that admits no class at all: numbers, texts,
lists and dicts are all that it needs (DESIGN §5.11). The dumps become lines of evidence, read like any other.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

DUMP_BYTES = 64 * 1024 * 1024
NAMED = 8
"""Absent ranks that are named; of more, the number says enough."""
_NAME = re.compile(
    r"(nccl_trace|comm_lib_trace|flight|fr_trace|fr_dump)\w*?_?(\d+)(\.(pkl|pickle|json))?$", re.IGNORECASE
)

Collective = tuple[str, str, str]
"""Operation, types and sizes: what has to be equal on all ranks of a group at one sequence number."""


class BadDump(Exception):
    """This is no flight-recorder dump, or one that asks for code to be run."""


class _Plain(pickle.Unpickler):
    """Reads values, never classes."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise BadDump(f"it asks for {module_name}.{global_name}, and a dump holds only values")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise BadDump("it refers to an object outside itself, and a dump holds only values")


@dataclass
class Group:
    """One process group as the dumps show it."""

    members: set[int] = field(default_factory=set)
    calls: dict[int, dict[int, Collective]] = field(default_factory=dict)
    """By rank, then by sequence number."""


def rank_of_dump(name: str) -> int | None:
    """The rank whose dump a file of this name is; None for other files."""
    found = _NAME.search(name)
    return int(found[2]) if found else None


def load(data: bytes) -> Mapping[str, Any]:
    """A dump's content.

    Raises:
        BadDump: it is not one, or not harmless.
    """
    if len(data) > DUMP_BYTES:
        raise BadDump(f"it is larger than {DUMP_BYTES >> 20} MiB")
    try:
        content = json.loads(data) if data[:1] == b"{" else _Plain(io.BytesIO(data)).load()
    except BadDump:
        raise
    except Exception as error:  # a pickle can fail in any way that its bytes say
        raise BadDump(f"it cannot be read: {type(error).__name__}") from error
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise BadDump("it holds no list of entries")
    return content


def analyse(dumps: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """What the dumps of several ranks (by rank) say together, one line a finding; nothing when they agree."""
    lines = []
    for name, group in sorted(_groups(dumps).items()):
        lines += [*_absent(group, set(dumps)), *_differing(name, group), *_behind(name, group)]
    return list(dict.fromkeys(lines))


def _groups(dumps: Mapping[int, Mapping[str, Any]]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for rank, dump in dumps.items():
        for name, members in _members(dump):
            groups.setdefault(name, Group()).members |= members
        for name, number, call in _calls(dump["entries"]):
            groups.setdefault(name, Group()).calls.setdefault(rank, {})[number] = call
    return groups


def _members(dump: Mapping[str, Any]) -> Iterator[tuple[str, set[int]]]:
    config = dump.get("pg_config")
    for name, about in config.items() if isinstance(config, dict) else ():
        ranks = str(about.get("ranks", "")) if isinstance(about, dict) else ""
        yield str(name), {int(number) for number in re.findall(r"\d{1,7}", ranks)}


def _calls(entries: Iterable[Any]) -> Iterator[tuple[str, int, Collective]]:
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("is_p2p") or not isinstance(entry.get("collective_seq_id"), int):
            continue
        group = entry.get("process_group")
        name = str(group[0]) if isinstance(group, list | tuple) and group else "0"
        operation = str(entry.get("profiling_name", "?")).rpartition(":")[2]
        sizes = "" if "all_to_all" in operation.lower() else str(entry.get("input_sizes", ""))[:200]
        yield name, entry["collective_seq_id"], (operation, str(entry.get("input_dtypes", ""))[:200], sizes)


def _absent(group: Group, dumped: set[int]) -> list[str]:
    absent = sorted(group.members - dumped)
    here = len(group.members & dumped)
    return [f"flight recorder: rank {rank} wrote no dump, {here} others did" for rank in absent[:NAMED] if here]


def _differing(name: str, group: Group) -> list[str]:
    """The first sequence number at which two ranks do not do the same. The ring of each rank begins at its own."""
    shared = set.intersection(*(set(calls) for calls in group.calls.values())) if len(group.calls) > 1 else set()
    for number in sorted(shared):
        by_call: dict[Collective, int] = {}
        for rank in sorted(group.calls):
            by_call.setdefault(group.calls[rank][number], rank)
        if len(by_call) > 1:
            (one, a), (other, b) = list(by_call.items())[:2]
            return [
                f"flight recorder: ranks {a} and {b} differ at #{number} of group {name}: {_say(one)} / {_say(other)}"
            ]
    return []


def _behind(name: str, group: Group) -> list[str]:
    last = {rank: max(calls) for rank, calls in group.calls.items()}
    if len(set(last.values())) < 2:
        return []
    slowest = min(last, key=lambda rank: (last[rank], rank))
    newest = max(last.values())
    return [f"flight recorder: rank {slowest} is behind in group {name}: at #{last[slowest]}, others at #{newest}"]


def _say(call: Collective) -> str:
    return " ".join(part for part in (call[0], call[2]) if part)

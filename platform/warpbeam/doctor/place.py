"""Which rank, node or pod a line belongs to, and when it was written: read from its file's name and from itself."""

from __future__ import annotations

import re

from warpbeam.doctor.facts import Source
from warpbeam.doctor.signal import Reading

_RANK = re.compile(
    r"\brank[\s_=:-]?\s?(\d+)(?!\d|\s?\.\.|\s?-\s?\d)|\[rank(\d+)\]|\[(?:default)?(\d+)\]:", re.IGNORECASE
)
_RANK_NAME = re.compile(r"\brank[\s_-]?(\d+)(?!\d|\s?\.\.|\s?-\s?\d)", re.IGNORECASE)
_NODE_NAME = re.compile(
    r"\b((?:node|host|gpu|machine)-[\w.-]+|(?<=node )[\w.-]*\d[\w.-]*|(?<=dmesg )[\w-]+)\b", re.IGNORECASE
)
_NCCL_HOST = re.compile(r"^([\w.-]+):\d+:\d+ \[\d+\] NCCL ")
_RAY_NODE = re.compile(r"\((?:\w+ )?pid=\d+, ip=([\d.]+)\)|\bon node ([\w.-]+\d[\w.-]*)")
_POD = re.compile(
    r"\bpods?[/ ]\"?(?:[\w-]+/)?([a-z0-9][a-z0-9.-]+-[a-z0-9.-]+)"
    r"|(?:FailedScheduling|FailedCreate\w*|BackOff) ([a-z0-9][a-z0-9-]*-\d+)\b"
    r"|\b([a-z0-9][a-z0-9-]*-\d+) (?:Pending|Init|Error|Waiting)"
)
_STATE = re.compile(
    r"\b(pods?|k8s|kube\w*|events?|ray(cluster|job|service)|\w*job|workload|operator|pod ?group|status|spec|describe"
    r"|quota|env|args|config|versions?|symptom|note|nodes?|cluster|laptop|switch|ibv_devinfo|ibstat|lspci|nvidia-smi|dmesg"
    r"|proc|cmdline|group|ps|ulimit|df|topology)\b|\.(ya?ml|json)$",
    re.IGNORECASE,
)
_LOG = re.compile(r"\blogs?\b|\.(log|out|err|txt)(\.\d+)?$|\bstack\b|\btrace", re.IGNORECASE)
_TIME = re.compile(
    r"(?P<iso>\d{4}-(?P<mo>\d\d)-(?P<d>\d\d)[T ](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?))"
    r"|\b[IWEFD](?P<gmo>\d\d)(?P<gd>\d\d) (?P<gh>\d\d):(?P<gm>\d\d):(?P<gs>\d\d(?:\.\d+)?)"
    r"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<sd>\d{1,2})"
    r" (?P<sh>\d\d):(?P<sm>\d\d):(?P<ss>\d\d)"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_HEAD = 120
"""Characters of a line in which its time and rank are looked for."""


_CALM = re.compile(
    r"^\S+ \S+\s+(INFO|DEBUG) \S+:\d+ --|^\[[\d :,.-]+ [ID] \d+ \d+\]|\[state-dump\]"
    r"|.levelname.: .(DEBUG|INFO)\b|^\s*- [^:]*: 0$"
)


def calm(line: str, source: Source) -> bool:
    """Whether Ray itself says that the line is no trouble: its INFO and DEBUG levels, its dumps of counters.

    In the autoscaler's log decisions are INFO.
    """
    return _CALM.search(line) is not None and "autoscaler" not in source.where and "monitor" not in source.where


def source(where: str, *, told: bool = False) -> Source:
    """The source that a file's name or a label names."""
    log = _LOG.search(where)
    reading = Reading.STATE if _STATE.search(where) and not log else Reading.LOG
    return Source(where, reading, told, _number(_RANK_NAME.search(where)), _word(_NODE_NAME.search(where)))


def rank_of(line: str, source: Source) -> int | None:
    """The line's own rank, else its file's."""
    return source.rank if source.rank is not None else _number(_RANK.search(line[:_HEAD]))


def node_of(line: str, source: Source) -> str | None:
    """The host that the line names, else its file's."""
    return (
        _word(_NCCL_HOST.match(line))
        or _word(_RAY_NODE.search(line[:_HEAD]))
        or source.node
        or _word(_NODE_NAME.search(line))
    )


def pod_of(line: str, source: Source) -> str | None:
    """The pod that the line names."""
    return source.pod or _word(_POD.search(line)) if source.reading is Reading.STATE else source.pod


def time_of(line: str) -> float | None:
    """Seconds since the year began (months counted as 31 days: only for order); None without a time."""
    found = _TIME.search(line[:_HEAD])
    if found is None:
        return None
    part = found.groupdict()
    if part["iso"]:
        return _seconds(int(part["mo"]), part["d"], part["h"], part["m"], part["s"].replace(",", "."))
    if part["gmo"]:
        return _seconds(int(part["gmo"]), part["gd"], part["gh"], part["gm"], part["gs"])
    return _seconds(_MONTHS.index(part["name"].lower()) + 1, part["sd"], part["sh"], part["sm"], part["ss"])


def _seconds(month: int, day: str, hour: str, minute: str, second: str) -> float:
    return (((month - 1) * 31 + int(day) - 1) * 24 + int(hour)) * 3600.0 + int(minute) * 60 + float(second)


def _number(found: re.Match[str] | None) -> int | None:
    word = _word(found)
    return int(word) if word is not None else None


def _word(found: re.Match[str] | None) -> str | None:
    return next((group for group in found.groups() if group), None) if found else None

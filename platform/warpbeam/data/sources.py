"""Which files a `path:` of the job file names, and the fixed tasks they are cut into.

What is found and how it is cut depends on the files' names and sizes alone, never on the cluster, so a task's output
is the same wherever and whenever it runs.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.data.files import READABLE, SourceFile, kind_of, local_stamp, reading
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import ObjectStore, StorageConfig

__all__ = ["TASK_BYTES", "Expansion", "SourceFile", "Task", "cut_tasks", "expand"]

TASK_BYTES = 4 << 20
"""Stored bytes of one task, about."""
FOOTERS_AT_ONCE = 16
"""Parquet footers are read in parallel: each is a few round trips to a bucket."""


@dataclass(frozen=True)
class Expansion:
    """The files that a path names, sorted by uri, and what was passed over on the way."""

    files: tuple[SourceFile, ...]
    passed_over: dict[str, int] = field(default_factory=dict)
    """Reason -> count: `empty`, `hidden` (begins with _ or .), `folder_marker`, `unreadable_type`."""
    empty: tuple[str, ...] = ()
    """Uris of the empty files."""
    unreadable_types: tuple[str, ...] = ()
    """Extensions of the files of a type that we do not read."""

    def summary(self) -> str:
        """What was passed over, in words; an empty string when nothing was."""
        details = {
            "empty": ", ".join(uri.rsplit("/", 1)[-1] for uri in self.empty[:5]) + (", ..." if self.empty[5:] else ""),
            "unreadable_type": ", ".join(self.unreadable_types),
        }
        words = {"folder_marker": "folder marker", "unreadable_type": "of a type that is not read", "hidden": "hidden"}
        parts = []
        for reason, count in sorted(self.passed_over.items()):
            detail = details.get(reason)
            parts.append(f"{count} {words.get(reason, reason)}" + (f" ({detail})" if detail else ""))
        return ", ".join(parts)


@dataclass(frozen=True)
class Task:
    """A fixed piece of one file; every record belongs to exactly one task of its file.

    `[start, end)` are bytes of the stored file (jsonl: the lines whose first byte lies there), rows groups (parquet),
    or the whole file (compressed).
    """

    source: int
    file: SourceFile
    start: int
    end: int


class _Entry(NamedTuple):
    name: str
    """Relative to the place that was listed."""
    uri: str
    size: int
    stamp: str


def expand(path: str, root: Path, config: StorageConfig | None) -> Expansion:
    """Find the files that `path` names.

    A file or key of exactly that name first; then a pattern (`*` and `?` inside one name, `**` across folders,
    `[...]`); then a folder or prefix, which means every readable file below it.

    Args:
        root: relative paths start here (the job file's folder).

    Raises:
        UserError: nothing readable is there, or it is a file of a type that is not read.
    """
    if path.startswith("s3://"):
        return _expand_object(path, config)
    if path.startswith("file://"):
        from warpbeam.storage.config import local_path

        return _expand_local(path, f"{local_path(path)}{'/' if path.endswith('/') else ''}", root)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path)
    if scheme:
        raise UserError(
            f"data cannot be read from {path}",
            why=f"{scheme[0]} is not one of the places that data is read from",
            fix="copy it to a local folder or to s3:// and name that",
            reason="unknown_scheme",
        )
    return _expand_local(path, os.path.expanduser(path), root)


def cut_tasks(
    files: Iterable[SourceFile], task_bytes: int = TASK_BYTES, *, source: int = 0, config: StorageConfig | None = None
) -> list[Task]:
    """Cut files into tasks of about `task_bytes`, in the files' order.

    Parquet files are cut between row groups, so their footers are read here; other files are not opened.

    Args:
        source: index of the data source these files belong to, copied into the tasks.
    """

    def ranges(file: SourceFile) -> list[tuple[int, int]]:
        if file.kind == "parquet":
            from warpbeam.data.parquet import cut_row_groups

            return cut_row_groups(file, task_bytes, config)
        if file.compression:
            return [(0, file.size)]
        count = max(1, round(file.size / task_bytes))
        return list(pairwise(file.size * index // count for index in range(count + 1)))

    files = list(files)
    if any(file.kind == "parquet" for file in files):
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            cut = list(pool.map(ranges, files))
    else:
        cut = [ranges(file) for file in files]
    return [Task(source, file, *edges) for file, found in zip(files, cut, strict=True) for edges in found]


def _expand_local(path: str, written: str, root: Path) -> Expansion:
    uri = os.path.abspath(root / written)
    with reading(uri):
        if os.path.isfile(uri):
            stat = os.stat(uri)
            return _sift(path, [_Entry(os.path.basename(uri), uri, stat.st_size, local_stamp(stat))], exact=True)
        if os.path.isdir(uri):
            return _sift(path, _walk(uri, None))
        literal, pattern = _split_pattern(written)
        folder = os.path.abspath(root / literal)
        if pattern is None or not os.path.isdir(folder):
            raise _nothing(path, f"there is no {folder}{_near(folder)}")
        return _sift(path, _walk(folder, pattern), pattern=pattern)


def _expand_object(path: str, config: StorageConfig | None) -> Expansion:
    from warpbeam.storage import open_uri

    bucket, _, key = path.removeprefix("s3://").partition("/")
    store, _ = open_uri(f"s3://{bucket}", config)
    if key and not key.endswith("/"):
        info = store.head(key)
        if info is not None:
            entry = _Entry(key.rsplit("/", 1)[-1], path, info.size, info.etag)
            return _sift(path, [entry], exact=True)
    literal, pattern = _split_pattern(key)
    folder = literal.removesuffix("/")
    return _sift(path, _list(store, bucket, f"{folder}/" if folder else ""), pattern=pattern)


def _list(store: ObjectStore, bucket: str, prefix: str) -> Iterator[_Entry]:
    for info in store.list(prefix):
        yield _Entry(info.key.removeprefix(prefix), f"s3://{bucket}/{info.key}", info.size, info.etag)


def _walk(folder: str, pattern: str | None) -> Iterator[_Entry]:
    """Every file below a local folder that the pattern could match; a hidden folder is one entry, and not entered."""
    levels = 1 << 30 if pattern is None or "**" in pattern or pattern.endswith("/") else pattern.count("/")
    enter_hidden = _wants_hidden(pattern)

    def walk(folder: str, below: str, inside: frozenset[str]) -> Iterator[_Entry]:
        real = os.path.realpath(folder)
        if real in inside:  # a link to a folder around it
            return
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = below + entry.name
            if entry.is_dir():
                if _is_hidden(entry.name) and not enter_hidden:
                    yield _Entry(name, entry.path, 0, "")
                elif name.count("/") < levels:
                    yield from walk(entry.path, f"{name}/", inside | {real})
            elif entry.is_file():
                stat = entry.stat()
                yield _Entry(name, entry.path, stat.st_size, local_stamp(stat))

    return walk(folder, "", frozenset())


def _sift(path: str, entries: Iterable[_Entry], *, pattern: str | None = None, exact: bool = False) -> Expansion:
    """Keep what is readable and matches; count the rest by reason."""
    matches = _matcher(pattern)
    wants_hidden = exact or _wants_hidden(pattern)
    files: list[SourceFile] = []
    passed_over: Counter[str] = Counter()
    empty: list[str] = []
    types: set[str] = set()
    for entry in entries:
        kind = kind_of(entry.name)
        if not matches(entry.name):
            continue
        if not entry.name or entry.name.endswith("/"):
            passed_over["folder_marker"] += 1
        elif not wants_hidden and any(map(_is_hidden, entry.name.split("/"))):
            passed_over["hidden"] += 1
        elif kind is None:
            if exact:
                raise _unreadable(path)
            passed_over["unreadable_type"] += 1
            types.add(os.path.splitext(entry.name)[1] or entry.name.rsplit("/", 1)[-1])
        elif entry.size == 0:
            passed_over["empty"] += 1
            empty.append(entry.uri)
        else:
            files.append(SourceFile(entry.uri, entry.size, entry.stamp, kind[1], kind[0]))
    files.sort(key=lambda file: file.uri)
    expansion = Expansion(tuple(files), dict(passed_over), tuple(sorted(empty)), tuple(sorted(types)))
    if not files:
        summary = expansion.summary()
        raise _nothing(path, f"passed over: {summary}" if summary else "nothing is there")
    return expansion


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _wants_hidden(pattern: str | None) -> bool:
    """Whoever spells the underscore or the dot means it."""
    return pattern is not None and re.search(r"(^|/)[_.]", pattern) is not None


def _split_pattern(path: str) -> tuple[str, str | None]:
    """The folder before the first wildcard, and the pattern below it (None when there is no wildcard)."""
    wildcard = re.search(r"[*?[]", path)
    if wildcard is None:
        return path, None
    folder, slash, _ = path[: wildcard.start()].rpartition("/")
    return folder or slash, path[len(folder) + len(slash) :]


def _matcher(pattern: str | None) -> Callable[[str], object]:
    if pattern is None:
        return lambda name: True
    return re.compile(_regex(pattern)).fullmatch


def _regex(pattern: str) -> str:
    """A path pattern as a regular expression; one that ends in a slash means everything below."""
    out = ""
    rest = pattern + "**" if pattern.endswith("/") else pattern
    while rest:
        token = re.match(r"\*\*/|\*+|\?|\[[!^]?\]?[^\]/]*\]|.", rest, re.DOTALL)
        assert token is not None
        text = token[0]
        rest = rest[len(text) :]
        if text == "**/":
            out += "(?:.*/)?"
        elif text.startswith("**"):
            out += ".*"
        elif text == "*":
            out += "[^/]*"
        elif text == "?":
            out += "[^/]"
        elif text.startswith("[") and len(text) > 2:
            body = text[1:-1]
            negated = body[0] in "!^"
            body = (body[1:] if negated else body).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            out += f"(?!/)[{'^' if negated else ''}{body}]"
        else:
            out += re.escape(text)
    return out


def _nothing(path: str, why: str) -> UserError:
    return UserError(
        f"no records: nothing to read at {path}",
        why=why,
        fix=f"name a file, a folder or a pattern such as folder/*.jsonl; readable are {READABLE}",
        reason="no_records",
    )


def _near(missing: str) -> str:
    """The most similar name beside a path that does not exist."""
    folder, name = os.path.split(missing)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _unreadable(path: str) -> UserError:
    return UserError(
        f"{path} is not of a type that can be read",
        why=f"readable are {READABLE}",
        fix="convert it to JSON Lines (one object a line) or Parquet",
        reason="unreadable_type",
    )

"""The black box of an attempt that ended badly: what a post-mortem wants, in the store, beside the record.

One small tar from each machine with what its ranks left on its disk (stacks, NCCL's warnings, the flight recorder,
their environment), and one from the driver with the end of everything that the record holds. Each can be handed to
somebody and read with `warpbeam doctor --bundle`. What might be a secret is taken out before it is packed, and what is
in binary form and holds one is left out.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpbeam.record import keys
from warpbeam.record.redact import Redactor
from warpbeam.record.stream import StreamReader
from warpbeam.record.view import json_lines
from warpbeam.secret_shapes import redact

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

KILLS: Final = "memory kills at start: "
MINUTES: Final = 10.0
BOX_BYTES: Final = 32 << 20
"""Of one machine's tar, before it is compressed."""
TAIL_BYTES: Final = 128 << 10
"""Of one rank's log or stacks; less where many ranks share a box."""
DUMP_BYTES: Final = 8 << 20
"""A larger dump is left out: half of one cannot be read."""
_FILES: Final = ("*.env", "*.stacks.txt", "*.nccl.txt", "fr_trace_rank_*")

Names = tuple[str, str, str]  # team, run, attempt
Part = tuple[str, bytes]


def memory_kills(root: Path = Path("/")) -> tuple[int, str]:
    """How many processes the kernel has ended for want of memory, and where: in this container where its control group
    tells it, on the whole machine elsewhere."""
    for name, where in (("sys/fs/cgroup/memory.events", "container"), ("proc/vmstat", "machine")):
        try:
            words = (root / name).read_text().split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1]), where
    return 0, "machine"


def of_machine(folder: Path, secrets: Iterable[str]) -> list[Part]:
    """What the ranks of an attempt left in their folder on this machine, scrubbed."""
    paths = [path for pattern in _FILES for path in sorted(folder.glob(pattern)) if path.is_file()]
    limit = min(TAIL_BYTES, BOX_BYTES // max(1, len(paths)))
    parts = [(path.name, _content(path, limit)) for path in paths]
    return list(_bounded(_scrubbed([*_memory(folder), *parts], secrets)))


def of_record(
    store: ObjectStore, names: Names, beats: Sequence[Mapping[str, Any]], ranks: int, secrets: Iterable[str]
) -> list[Part]:
    """The last minutes of metrics and events, the ends of the ranks' logs, and the heartbeats that the driver has seen.

    Args:
        beats: oldest first.
        ranks: of this attempt: they share the room for logs.
    """
    since = time.time() - 60 * MINUTES
    parts: list[Part] = [("heartbeats.jsonl", _lines(beats))]
    for kind in ("metrics", "events"):
        streams = StreamReader(store, keys.streams(*names, kind), 60 * MINUTES).read()  # type: ignore[arg-type]
        rows = [row for data in streams.values() for row in json_lines(data) if float(row.get("at", since)) >= since]
        parts.append((f"{kind}.jsonl", _lines(rows)))
    limit = min(TAIL_BYTES, BOX_BYTES // 2 // max(1, ranks))
    parts += _log_ends(store, keys.streams(*names, "logs"), limit)
    return list(_bounded(_scrubbed(parts, secrets)))


def keep(store: ObjectStore, names: Names, who: str, parts: Sequence[Part]) -> None:
    """Put one machine's part of the box; nothing where there is nothing."""
    if not parts:
        return
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in parts:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mtime = int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    store.put(keys.black_box(*names, who), packed.getvalue())


def _memory(folder: Path) -> list[Part]:
    """The kernel's word, where it has ended a process for want of memory since the first rank here began."""
    before = [
        int(line.removeprefix(KILLS))
        for path in folder.glob("*.env")
        for line in path.read_text().splitlines()
        if line.startswith(KILLS)
    ]
    now, where = memory_kills()
    if not before or now <= min(before):
        return []
    said = f"kernel: ended {now - min(before)} process(es) of this {where} for want of memory while the attempt ran\n"
    return [("memory.txt", said.encode())]


def _content(path: Path, limit: int) -> bytes:
    is_dump = path.name.startswith("fr_trace")
    size = path.stat().st_size
    if is_dump and size > DUMP_BYTES:
        return b""
    with path.open("rb") as file:
        file.seek(0 if is_dump else max(0, size - limit))
        return file.read(DUMP_BYTES if is_dump else limit)


def _log_ends(store: ObjectStore, prefix: str, limit: int) -> Iterator[Part]:
    """The end of each process's log, from the newest of its objects."""
    newest = {info.key.removeprefix(f"{prefix}/").rpartition("/")[0]: info for info in store.list(f"{prefix}/")}
    for who, info in sorted(newest.items()):
        start = max(0, info.size - limit)
        yield f"{who}.log", store.get(info.key, start, info.size - start)


def _scrubbed(parts: Iterable[Part], secrets: Iterable[str]) -> Iterator[Part]:
    redactor = Redactor(secrets)
    for name, data in parts:
        try:
            yield name, redact(redactor.text(data.decode())).encode()
        except UnicodeDecodeError:
            if name.startswith("fr_trace"):  # a pickle: to replace bytes in it would break it
                if redactor.text(text := data.decode("latin-1")) == text:
                    yield name, data
            else:
                yield name, redact(redactor.text(data.decode(errors="replace"))).encode()


def _bounded(parts: Iterable[Part]) -> Iterator[Part]:
    left = BOX_BYTES
    for name, data in parts:
        if data and len(data) <= left:
            left -= len(data)
            yield name, data


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows).encode()

"""How many rows an epoch has, estimated from the sizes of local files: a plan asks no store and reads no record."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warpbeam.job import Job

BYTES_PER_TOKEN: Final = 4.0  # of English text under a vocabulary of some ten thousand entries
MARKUP: Final = 1.15  # JSON around the text
COMPRESSED: Final = 3.5
MOST_FILES: Final = 10_000


def estimate_rows(job: Job, root: Path) -> int | None:
    """Packed rows of `seq_len` in one epoch; None where a source is not on this machine or cannot be estimated."""
    total = 0.0
    for source in job.data.train:
        if "://" in source.path and not source.path.startswith("file://"):
            return None
        found = _bytes(root / Path(source.path.removeprefix("file://")).expanduser())
        if found is None:
            return None
        total += found
    return max(1, round(total / MARKUP / BYTES_PER_TOKEN / job.data.seq_len))


def _bytes(path: Path) -> float | None:
    """Text behind a file, a folder or a pattern; None where there is none."""
    if path.is_dir():
        files = [p for p in path.rglob("*") if p.is_file()]
    elif path.is_file():
        files = [path]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True)]
    files = [file for file in files if not file.name.startswith((".", "_"))][:MOST_FILES]
    if not files:
        return None
    return sum(
        file.stat().st_size * (COMPRESSED if file.suffix in (".gz", ".zst", ".parquet") else 1.0) for file in files
    )

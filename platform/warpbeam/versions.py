"""Which versions were tested together, beside those that are installed: this field breaks by versions.

`TESTED` moves only when the whole suite passes on the new set (CHANGELOG says so). `KNOWN_BAD` lists pairs that cannot
work together, each with where it is known from. Reading what is installed imports nothing heavy: package metadata, one
line of torch's version file, and the driver's own word.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

TESTED: Final[dict[str, str]] = {
    "python": "3.11",
    "ray": "2.58.0",
    "torch": "2.13.0",
    "cuda": "13.0",  # that torch is built for
    "nccl": "2.29.7",
    "driver": "580",  # the oldest that runs CUDA 13; newer ones do too
    "deepspeed": "0.19.8",
    "transformers": "5.24.0",
    "tokenizers": "0.23.3",
    "accelerate": "1.15.0",
    "safetensors": "0.8.0",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
}

OPTIONAL: Final = frozenset({"cuda", "nccl", "driver"})  # a CPU machine has none


@dataclass(frozen=True)
class BadPair:
    """Two version ranges that do not work together."""

    first: str
    first_range: str
    second: str
    second_range: str
    what_happens: str
    source: str


KNOWN_BAD: Final = (
    BadPair(
        "cuda",
        ">=13",
        "driver",
        "<580",
        "torch finds no GPU: the driver is too old for CUDA 13",
        "CUDA toolkit release notes, table of minimum driver versions",
    ),
    BadPair(
        "cuda",
        ">=12,<13",
        "driver",
        "<525",
        "torch finds no GPU: the driver is too old for CUDA 12",
        "CUDA toolkit release notes, table of minimum driver versions",
    ),
    BadPair(
        "transformers",
        ">=5",
        "torch",
        "<2.6",
        "transformers hides every model: it wants torch 2.6 or newer",
        "transformers/dependency_versions_table.py of 5.24.0",
    ),
    BadPair(
        "transformers",
        ">=5",
        "accelerate",
        "<1.1",
        "loading a model fails: transformers wants accelerate 1.1 or newer",
        "transformers/dependency_versions_table.py of 5.24.0",
    ),
    BadPair(
        "transformers",
        ">=5.24,<5.25",
        "tokenizers",
        "<0.23.1",
        "import of transformers fails: it wants tokenizers 0.23.1 to 0.23.x",
        "transformers/dependency_versions_table.py of 5.24.0",
    ),
    BadPair(
        "transformers",
        ">=5.24,<5.25",
        "tokenizers",
        ">=0.24",
        "import of transformers fails: it wants tokenizers 0.23.1 to 0.23.x",
        "transformers/dependency_versions_table.py of 5.24.0",
    ),
    BadPair(
        "ray",
        "<2.46",
        "pyarrow",
        ">=20",
        "Ray Data fails: to_pylist() got an unexpected keyword argument 'maps_as_pydicts'",
        "https://github.com/ray-project/ray/issues/52685",
    ),
    BadPair(
        "torch",
        "<2.3",
        "numpy",
        ">=2",
        "torch cannot exchange arrays with numpy: it was compiled for NumPy 1",
        "https://github.com/pyg-team/pytorch-frame/pull/525",
    ),
)

_UNREADABLE: Final = Version("0")

Status = Literal["tested", "untested", "missing", "absent", "bad"]


@dataclass(frozen=True)
class VersionRow:
    """One line of `warpbeam version --check`.

    Attributes:
        status: tested: the tested version; untested: another one; missing: needed for training; absent: not needed
            here; bad: part of a pair known not to work.
        note: what to know, empty for a tested version.
    """

    name: str
    tested: str
    installed: str | None
    status: Status
    note: str = ""


def check_versions(
    installed: Mapping[str, str | None],
    *,
    tested: Mapping[str, str] = TESTED,
    known_bad: tuple[BadPair, ...] = KNOWN_BAD,
) -> list[VersionRow]:
    """Compare `installed` (name -> version, None where there is none) with the tested set, in its order. Pure."""
    broken: dict[str, list[str]] = {}
    for pair in known_bad:
        if _within(installed.get(pair.first), pair.first_range) and _within(
            installed.get(pair.second), pair.second_range
        ):
            for name, other in ((pair.first, pair.second), (pair.second, pair.first)):
                broken.setdefault(name, []).append(
                    f"with {other} {installed[other]}: {pair.what_happens} ({pair.source})"
                )
    return [_row(name, wanted, installed.get(name), broken.get(name, [])) for name, wanted in tested.items()]


def _row(name: str, tested: str, installed: str | None, broken: list[str]) -> VersionRow:
    if installed is None:
        if name in OPTIONAL:
            return VersionRow(name, tested, None, "absent", "not needed on CPUs")
        return VersionRow(
            name, tested, None, "missing", "training and serving need it: pip install 'warpbeam[train,serve]'"
        )
    if broken:
        return VersionRow(name, tested, installed, "bad", "; ".join(broken))
    if _same(name, installed, tested):
        return VersionRow(name, tested, installed, "tested")
    newer = _version(installed) > _version(tested)
    return VersionRow(name, tested, installed, "untested", "newer than tested" if newer else "older than tested")


def _same(name: str, installed: str, tested: str) -> bool:
    """The tested version counts to the digits it has (python 3.11 is any 3.11.x); a driver may be newer."""
    if name == "driver":
        return _version(installed) >= _version(tested)
    wanted = _version(tested).release
    return _version(installed).release[: len(wanted)] == wanted


def _within(version: str | None, allowed: str) -> bool:
    known = version is not None and _version(version) != _UNREADABLE
    return known and SpecifierSet(allowed).contains(_version(version or ""), prereleases=True)


def _version(text: str) -> Version:
    """A build's own suffix (`2.13.0+cu130`) is dropped; a word that is no version sorts lowest."""
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return _UNREADABLE


# ---- what is installed


def installed_versions() -> dict[str, str | None]:
    """What this machine has, for every name of `TESTED`."""
    found: dict[str, str | None] = {name: _package(name) for name in TESTED}
    found["python"] = platform.python_version()
    found["cuda"] = cuda_of_torch()
    found["nccl"] = next((v for v in map(_package, ("nvidia-nccl-cu13", "nvidia-nccl-cu12")) if v), None)
    found["driver"] = driver_version()
    return found


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cuda_of_torch() -> str | None:
    """The CUDA version torch was built for, from its version file; importing torch would take seconds."""
    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version_file = Path(spec.submodule_search_locations[0]) / "version.py"
    found = (
        re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", version_file.read_text(), re.MULTILINE)
        if version_file.is_file()
        else None
    )
    return found.group(1) if found else None


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # installed, but no driver answers
        return None
    lines = answer.stdout.split()
    return lines[0] if lines else None


def to_dict(rows: list[VersionRow]) -> dict[str, Any]:
    """For `--json`: ok is False where a pair is known not to work or something needed is missing."""
    listed = [
        {"name": r.name, "tested": r.tested, "installed": r.installed, "status": r.status, "note": r.note} for r in rows
    ]
    return {"ok": works(rows), "versions": listed}


def works(rows: list[VersionRow]) -> bool:
    """Whether nothing is known to be wrong; an untested version is only a warning."""
    return all(row.status not in ("bad", "missing") for row in rows)

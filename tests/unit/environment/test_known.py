"""The names that the tested libraries read. `python -m tests.unit.environment.test_known` takes them out anew."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from warpbeam.environment.known import FAMILIES, FILE, RENAMED, is_unknown, known, meant, slip_of

LIBRARIES = {
    "nvidia-nccl-cu13": ("nvidia/nccl/lib/libnccl.so.2",),
    "torch": ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so"),
}


def take_out() -> None:
    """Write known.json from the installed libraries."""
    names: dict[str, list[str]] = {}
    for package, files in LIBRARIES.items():
        found: set[str] = set()
        for file in files:
            content = (Path(_site_packages()) / file).read_bytes()
            found |= {name.decode() for name in re.findall(rb"\0((?:TORCH_|GLOO_|NCCL_)[A-Z0-9_]+)(?=\0)", content)}
        names[package] = sorted(name for name in found if name.startswith(FAMILIES))
    versions = {package: importlib.metadata.version(package) for package in LIBRARIES}
    FILE.write_text(json.dumps({"versions": versions, "names": names}, indent=1) + "\n")


def _site_packages() -> str:
    return next(path for path in sys.path if path.endswith("site-packages"))


def test_the_names_are_those_of_the_tested_versions() -> None:
    constraints = (Path(__file__).parents[3] / "constraints.txt").read_text()
    for package, version in json.loads(FILE.read_text())["versions"].items():
        assert f"\n{package}=={version}" in constraints, "take the names out of the newer library, see above"


def test_it_holds_what_everybody_sets() -> None:
    assert {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE"} <= known()
    assert len(known()) > 250


def test_a_misspelt_name_is_unknown_and_the_meant_one_is_offered() -> None:
    assert is_unknown("NCCL_SOCKET_IFNAMES")
    assert meant("NCCL_SOCKET_IFNAMES") == "NCCL_SOCKET_IFNAME"
    assert meant("NCCL_BLOCKING_WAIT") == "TORCH_NCCL_BLOCKING_WAIT"
    assert not is_unknown("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"), "of a plugin"
    assert not is_unknown("NOT_OURS")


@pytest.mark.parametrize(
    ("slip", "name"),
    [
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("GLO_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        ("DS_ACELERATOR", "DS_ACCELERATOR"),
        ("PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("OMP_NUM_TREADS", "OMP_NUM_THREADS"),
        ("CUDA_LAUNCH_BLOKING", "CUDA_LAUNCH_BLOCKING"),
    ],
)
def test_a_slip_in_the_first_part_of_a_name(slip: str, name: str) -> None:
    assert slip_of(slip) == name
    assert slip_of(name) is None


@pytest.mark.parametrize("name", ["MY_TOKEN", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "WANDB_API_KEY", "DEBUG"])
def test_what_may_be_somebodys_own_is_no_slip(name: str) -> None:
    assert slip_of(name) is None


def test_what_is_offered_for_an_old_name_is_read_today() -> None:
    assert [new for new in RENAMED.values() if is_unknown(new)] == []


if __name__ == "__main__":
    take_out()

"""Which variables the tested libraries read. Data in known.json, taken out of the libraries themselves.

`python -m tests.unit.environment.test_known` writes it anew; a test says when a library has a newer version than it.
"""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from pathlib import Path
from typing import Final

from warpbeam.spec_problems import nearest

FILE: Final = Path(__file__).with_name("known.json")
FAMILIES: Final = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_GLOO_", "GLOO_")
"""Prefixes that belong to one library alone, so that an unknown name under one is read by nobody."""
PLUGINS: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_", "NCCL_IBEXT_", "NCCL_SHARP_", "NCCL_SHIMNET_", "NCCL_TUNER_")
"""Of plugins that clouds and vendors ship beside NCCL."""
RENAMED: Final = {
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO",
}


EVERYDAY: Final = frozenset(
    [
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUBLAS_WORKSPACE_CONFIG",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_CPP_LOG_LEVEL",
        "TORCH_LOGS",
        "TORCH_SHOW_CPP_STACKTRACES",
        "DS_ACCELERATOR",
        "TOKENIZERS_PARALLELISM",
        "HF_HOME",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "UCX_NET_DEVICES",
        "UCX_TLS",
        "FI_PROVIDER",
        "FI_EFA_USE_DEVICE_RDMA",
    ]
)
"""What is often set besides, under prefixes that belong to nobody alone: here only a slip can be told."""
_SLIP: Final = 0.88
"""difflib's likeness of two names of which one is a slip of the other: one or two letters of ten to twenty."""


@lru_cache(maxsize=1)
def known() -> frozenset[str]:
    """All names."""
    return frozenset(name for names in json.loads(FILE.read_text())["names"].values() for name in names)


def is_unknown(name: str) -> bool:
    """Whether it looks like a variable of one of the libraries and none of them reads it."""
    return name.startswith(FAMILIES) and not name.startswith(PLUGINS) and name not in known()


def slip_of(name: str) -> str | None:
    """The variable of which this one is a slip; None for whatever may be somebody's own."""
    if name in EVERYDAY or name in known() or name.startswith(FAMILIES):
        return None
    found = difflib.get_close_matches(name, EVERYDAY | known(), n=1, cutoff=_SLIP)
    return found[0] if found else None


def meant(name: str) -> str | None:
    """The variable that was probably meant."""
    if name in RENAMED:
        return RENAMED[name]
    near = nearest(name, [other.lower() for other in known()])
    return near.upper() if near else None

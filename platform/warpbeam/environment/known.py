"""Which variables the tested libraries read. Data in known.json, taken out of the libraries themselves.

`python -m tests.unit.environment.test_known` writes it anew; a test says when a library has a newer version than it.
"""

from __future__ import annotations

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


@lru_cache(maxsize=1)
def known() -> frozenset[str]:
    """All names."""
    return frozenset(name for names in json.loads(FILE.read_text())["names"].values() for name in names)


def is_unknown(name: str) -> bool:
    """Whether it looks like a variable of one of the libraries and none of them reads it."""
    return name.startswith(FAMILIES) and not name.startswith(PLUGINS) and name not in known()


def meant(name: str) -> str | None:
    """The variable that was probably meant."""
    if name in RENAMED:
        return RENAMED[name]
    near = nearest(name, [other.lower() for other in known()])
    return near.upper() if near else None

"""Random states as bytes: what a rank needs so that its next random number is the one it would have drawn.

Python's and NumPy's states become JSON, torch's are bytes already; nothing is pickled.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch


def capture_rng() -> dict[str, torch.Tensor]:
    """The random states of this process (python, numpy, torch and, where it is in use, cuda) as uint8 tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "python": _pack([version, list(words), gauss]),
        "numpy": _pack([name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)]),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: dict[str, torch.Tensor]) -> None:
    """Put back what `capture_rng` took. A CUDA state is passed over where there is no CUDA."""
    version, words, gauss = _unpack(states["python"])
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = _unpack(states["numpy"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def _pack(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpack(state: torch.Tensor) -> Any:
    return json.loads(state.cpu().numpy().tobytes())

"""The C heap of a rank on CPU: memory that a step frees stays in the process for the next step.

glibc gives freed memory back to the system, and takes it again page by page, each of which the kernel clears first: on
a small model thousands of page faults a step, more in one rank than in another by the accident of addresses, so that
the others wait for it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_NEVER: Final = -1
_LARGEST_IN_HEAP: Final = 32 << 20  # glibc's own limit; what is larger has a mapping of its own
_GROWS_BY: Final = 64 << 20


def keep_freed_memory() -> None:
    """Tell glibc's malloc to give nothing back; elsewhere nothing changes. (The numbers are malloc.h's.)"""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_TOP_PAD, _GROWS_BY)

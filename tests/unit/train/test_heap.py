"""Memory that a step frees is there for the next one, counted in page faults of a fresh process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys
from warpbeam.train.heap import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
SIZE = 16 << 20

def step():
    tensors = [libc.malloc(SIZE) for _ in range(3)]
    for tensor in tensors:
        ctypes.memset(tensor, 1, SIZE)
    for tensor in tensors:
        libc.free(tensor)

if sys.argv[1] == "keep":
    keep_freed_memory()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def faults_a_step(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_step_takes_no_new_pages() -> None:
    assert faults_a_step("leave") > 1000, "the rival: glibc gives back what a step frees"
    assert faults_a_step("keep") < 10

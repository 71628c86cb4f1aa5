"""How fast a rank's device computes and moves bytes, and whether what it computes is right.

The burn multiplies matrices of small whole numbers: their products are exact in every precision's accumulator, so the
first one is compared with a product in fp64 on the host, and each later one with the first, bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

from warpbeam.preflight.probes.machine import cpu_limit

GPU_SIZE: Final = 8192
CPU_SIZE: Final = 256
CHECKED_ROWS: Final = 16
COPY_BYTES_GPU: Final = 1 << 30
COPY_BYTES_CPU: Final = 32 << 20
"""More than a processor's caches hold, for most of them; sixteen ranks' worth is still little memory."""
HOST_BYTES: Final = 256 << 20


def measure(device: torch.device, seconds: float) -> dict[str, Any]:
    """Burn for so long, then copy. As JSON, in the words of `measured.Speed`."""
    answer = _burn(device, seconds)
    answer["memory_bandwidth"] = _copy(device, seconds / 2)
    if device.type == "cuda":
        answer |= _host_link(device)
    return answer


def _burn(device: torch.device, seconds: float) -> dict[str, Any]:
    on_cpu = device.type == "cpu"
    size, dtype = (CPU_SIZE, torch.float32) if on_cpu else (GPU_SIZE, torch.bfloat16)
    seeded = torch.Generator().manual_seed(20)
    left = torch.randint(-2, 3, (size, size), generator=seeded).to(dtype)
    right = torch.randint(-2, 3, (size, size), generator=seeded).to(dtype)
    exact = (left[:CHECKED_ROWS].double() @ right.double()).to(dtype)
    left, right = left.to(device), right.to(device)
    first = left @ right
    correct = bool(torch.equal(first[:CHECKED_ROWS].cpu(), exact))
    _wait(device)
    products, product = 0, first
    began, worked = time.perf_counter(), time.process_time()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(1 if on_cpu else 16):
            product = left @ right
            products += 1
        _wait(device)
    worked = time.process_time() - worked
    correct = correct and bool(torch.equal(product, first))
    share = min(1.0, worked / spent) if on_cpu else None
    limit = cpu_limit() if on_cpu else None
    return {"flops": products * 2 * size**3 / spent, "right": correct, "cpu_share": share, "cpu_limit": limit}


def _copy(device: torch.device, seconds: float) -> float:
    """Bytes/s, read and written, of copies within the device's memory."""
    size = COPY_BYTES_CPU if device.type == "cpu" else COPY_BYTES_GPU
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _rate(device, seconds, size, lambda: target.copy_(source))


def _host_link(device: torch.device) -> dict[str, float]:
    """Bytes/s between pinned host memory and the device."""
    host = torch.ones(HOST_BYTES, dtype=torch.uint8).pin_memory()
    there = torch.empty(HOST_BYTES, dtype=torch.uint8, device=device)
    return {
        "to_device": _rate(device, 0.3, HOST_BYTES, lambda: there.copy_(host, non_blocking=True)),
        "from_device": _rate(device, 0.3, HOST_BYTES, lambda: host.copy_(there, non_blocking=True)),
    }


def _rate(device: torch.device, seconds: float, size_bytes: int, work: Callable[[], object]) -> float:
    work()
    _wait(device)
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or done == 0:
        work()
        _wait(device)
        done += 1
    return done * size_bytes / spent


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

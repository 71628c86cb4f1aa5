"""Rendezvous, links and collectives of one rank, under plain torch.distributed.

A process group lives as long as one question: of two ranks for a link, of a node's or of all ranks for collectives. Its
rendezvous is a store of its lowest rank, so that a link between two others needs nobody else. Everything has a
deadline: what does not answer raises.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from warpbeam.preflight.busbw import ELEMENT_BYTES, Op

PINGS: Final = 10
PAIR_BYTES_CPU: Final = 4 << 20
PAIR_BYTES_GPU: Final = 128 << 20
PAIR_MESSAGES: Final = 3
REACH_S: Final = 3.0
"""How long a plain TCP connection may take."""


@dataclass(frozen=True)
class Group:
    """Whom to meet.

    Args:
        ranks: in order; the first one's store is the rendezvous.
        addresses: (host, port) of each rank's store, in the same order.
        tag: no other group has it.
    """

    ranks: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]
    tag: str
    timeout_s: float


class Network:
    """This rank's part in it.

    Its store listens on every interface; who reaches it over which one is for the links to tell.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._backend = "nccl" if device.type == "cuda" else "gloo"
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a timeout is then an error, not the process's end
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._group: Group | None = None

    @property
    def port(self) -> int:
        """Of this rank's store."""
        return int(self._store.port)

    def reach(self, host: str, port: int) -> float:
        """Seconds until a TCP connection stands. Raises OSError."""
        began = time.perf_counter()
        with socket.create_connection((host, port), timeout=REACH_S):
            return time.perf_counter() - began

    def join(self, group: Group) -> None:
        """Make the group; raises what its backend raises, and OSError where its store cannot be reached."""
        self.leave()
        _within(REACH_S + group.timeout_s, lambda: self._meet(group))

    def _meet(self, group: Group) -> None:
        timeout = timedelta(seconds=group.timeout_s)
        store: Store = self._store
        if group.ranks[0] != self._rank:
            host, port = group.addresses[0]
            self.reach(host, port)
            store = TCPStore(host, port, is_master=False, timeout=timeout)
        store.set_timeout(timeout)
        self._group = group
        if self._backend == "nccl":
            torch.cuda.set_device(self._device)  # of this thread
        dist.init_process_group(
            self._backend,
            store=PrefixStore(group.tag, store),
            rank=group.ranks.index(self._rank),
            world_size=len(group.ranks),
            timeout=timeout,
            device_id=self._device if self._backend == "nccl" else None,
        )

    def leave(self) -> None:
        """End the group."""
        self._group = None
        if dist.is_initialized():
            dist.destroy_process_group()

    def link(self, group: Group) -> dict[str, Any]:
        """One way of 8 bytes, and bytes/s both ways, between two ranks."""
        for rank, (host, port) in zip(group.ranks, group.addresses, strict=True):
            if rank != self._rank:
                self.reach(host, port)
        self.join(group)
        try:
            return self._measure_link(group.ranks.index(self._rank))
        finally:
            self.leave()

    def _measure_link(self, me: int) -> dict[str, Any]:
        other, small = 1 - me, torch.full((2,), float(me), device=self._device)
        self._ping(small, other, first=me == 0)
        began = time.perf_counter()
        for _ in range(PINGS):
            self._ping(small, other, first=me == 0)
        latency_s = (time.perf_counter() - began) / PINGS / 2
        size = PAIR_BYTES_CPU if self._device.type == "cpu" else PAIR_BYTES_GPU
        data = torch.full((size // ELEMENT_BYTES,), float(me), device=self._device)
        ways = [self._stream(data, other, sends=me == sender) for sender in (0, 1)]
        right = bool((data == float(other)).all()) if me == 0 else True
        return {"latency_s": latency_s, "ways": [size * PAIR_MESSAGES / seconds for seconds in ways], "right": right}

    def _ping(self, tensor: torch.Tensor, other: int, *, first: bool) -> None:
        for sends in (first, not first):
            dist.send(tensor, other) if sends else dist.recv(tensor, other)
        self._wait()

    def _stream(self, data: torch.Tensor, other: int, *, sends: bool) -> float:
        """Seconds for some large messages one way, and a short word back that they have arrived."""
        done = torch.zeros(1, device=self._device)
        if sends:
            data.fill_(float(1 - other))
        self._wait()
        began = time.perf_counter()
        for _ in range(PAIR_MESSAGES):
            dist.send(data, other) if sends else dist.recv(data, other)
        dist.recv(done, other) if sends else dist.send(done, other)
        self._wait()
        return time.perf_counter() - began

    def collective(self, op: Op, size_bytes: int, repeats: int) -> dict[str, Any]:
        """Seconds of one operation in the group joined last, and whether its result was right."""
        assert self._group is not None, "a group is joined first"
        work = _Operation(op, size_bytes, len(self._group.ranks), self._group.ranks.index(self._rank), self._device)
        work.run()  # what is checked is also the warm-up
        right = work.is_right()
        dist.barrier()
        self._wait()
        began = time.perf_counter()
        for _ in range(repeats):
            work.run()
        self._wait()
        return {"seconds": (time.perf_counter() - began) / repeats, "right": right}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do it, or raise TimeoutError: a client of torch's store waits without end for one whose process is stopped."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]


class _Operation:
    """One collective's buffers: filled so that the result is known."""

    def __init__(self, op: Op, size_bytes: int, ranks: int, me: int, device: torch.device) -> None:
        count, self._op, self._ranks, self._me = size_bytes // ELEMENT_BYTES, op, ranks, me
        share = count // ranks if op.shares else count
        self._sum = float(ranks * (ranks + 1) // 2)
        self._in = torch.full((share if op is Op.ALL_GATHER else count,), float(me + 1), device=device)
        self._out = self._in
        if op is Op.ALL_TO_ALL:
            self._out = torch.empty_like(self._in)
        elif op.shares:
            self._out = torch.empty((count if op is Op.ALL_GATHER else share,), device=device)

    def run(self) -> None:
        match self._op:
            case Op.ALL_REDUCE:
                dist.all_reduce(self._in)
            case Op.ALL_GATHER:
                dist.all_gather_into_tensor(self._out, self._in)
            case Op.REDUCE_SCATTER:
                dist.reduce_scatter_tensor(self._out, self._in)
            case Op.ALL_TO_ALL:
                dist.all_to_all_single(self._out, self._in)

    def is_right(self) -> bool:
        """Of the first run, on fresh buffers."""
        if self._op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER):
            right = bool((self._out == self._sum).all())
            self._in.zero_()  # further sums stay finite
            return right
        shares = self._out.view(self._ranks, -1)
        wanted = torch.arange(1, self._ranks + 1, dtype=shares.dtype, device=shares.device).unsqueeze(1)
        return bool((shares == wanted).all())

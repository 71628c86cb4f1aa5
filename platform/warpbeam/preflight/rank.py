"""One rank of a preflight: it does what it is told, one order after another, and says what came of it.

Whoever starts the rank (a process of this machine, an actor of Ray) carries orders and answers; nothing here knows who.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import torch

from warpbeam.preflight.busbw import Op
from warpbeam.preflight.probes import device, machine, storage
from warpbeam.preflight.probes.network import Group, Network
from warpbeam.storage.processes import boot_id
from warpbeam.train.ranks import pick_device

Order = dict[str, Any]


class RankProbes:
    """Answers orders: `{"probe": NAME, ...its arguments}`.

    Args:
        address: where the other ranks reach this one.
    """

    def __init__(self, rank: int, address: str, threads: int | None = None) -> None:
        self._rank, self._address = rank, address
        self._network: Network | None = None
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = pick_device()

    def introduction(self) -> dict[str, Any]:
        """Who this is, in the words of `measured.Rank`, less what only its launcher knows."""
        name = "cpu" if self._device.type == "cpu" else torch.cuda.get_device_name(self._device)
        return {
            "rank": self._rank,
            "address": self._address,
            "pid": os.getpid(),
            "device": name,
            "machine": f"{socket.gethostname()}-{boot_id()[:8]}",
        }

    def carry_out(self, order: Order) -> dict[str, Any]:
        """The answer as JSON. Raises what the probe raises."""
        arguments = {key: value for key, value in order.items() if key not in ("probe", "id")}
        match order["probe"]:
            case "clock":
                return {"at": time.time()}
            case "facts":
                return machine.facts(**arguments) | {"device_free_bytes": self._device_memory()}
            case "storage":
                return storage.measure(**arguments)
            case "burn":
                return device.measure(self._device, **arguments)
            case "open":
                self._network = Network(self._rank, self._device)
                return {"port": self._network.port}
            case "reach":
                return {"seconds": self._open().reach(**arguments)}
            case "link":
                return self._open().link(_group(arguments))
            case "join":
                self._open().join(_group(arguments))
                return {}
            case "leave":
                self._open().leave()
                return {}
            case "collective":
                return self._open().collective(Op(arguments.pop("op")), **arguments)
        raise ValueError(f"no such probe: {order['probe']}")

    def _open(self) -> Network:
        assert self._network is not None, "`open` comes first"
        return self._network

    def _device_memory(self) -> int | None:
        return int(torch.cuda.mem_get_info(self._device)[0]) if self._device.type == "cuda" else None


def error_words(error: BaseException) -> str:
    """The first line of an error, short: what a row of the table holds."""
    if isinstance(error, TimeoutError):
        return "no answer: timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def _group(arguments: dict[str, Any]) -> Group:
    addresses = tuple((host, port) for host, port in arguments["addresses"])
    return Group(tuple(arguments["ranks"]), addresses, arguments["tag"], arguments["timeout_s"])

"""The parent of a local crew's ranks: imports torch once, then forks each rank, and tells how they end.

`python -m warpbeam.preflight.local_ranks SOCKET` with the ranks as JSON on its input. A rank speaks lines of JSON over
a Unix socket, which no network namespace is in the way of. Whoever dies takes those below along.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from warpbeam.preflight.rank import RankProbes, error_words

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
CLONE_NEWNET = 0x40000000


def main() -> None:
    """Fork the ranks; returns when all of them have ended."""
    _die_with_parent()
    address = sys.argv[1]
    children: dict[int, int] = {}
    for spec in json.loads(sys.stdin.readline()):
        pid = os.fork()
        if pid == 0:
            _rank(address, spec)
        children[pid] = int(spec["rank"])
    with _connection(address) as wire:
        for rank, how in _ends(children):
            _say(wire, {"died": rank, "what": how})


def _ends(children: dict[int, int]) -> Iterator[tuple[int, str]]:
    while children:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        how = f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        yield children.pop(pid), how


def _rank(address: str, spec: dict[str, Any]) -> None:
    """A child's whole life."""
    code = 1
    try:
        _die_with_parent()
        name_process(f"preflight-{spec['rank']}")
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(spec["env"])
        with _connection(address) as wire:
            _serve(wire, spec)
        code = 0
    except BaseException as error:  # its last words are all that anybody will know
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)  # threads of process groups would be waited for


def _serve(wire: IO[bytes], spec: dict[str, Any]) -> None:
    probes = RankProbes(int(spec["rank"]), spec["address"], spec["threads"])
    _say(wire, {"joined": probes.introduction()})
    while line := wire.readline():
        order = json.loads(line)
        answer: dict[str, Any] = {"rank": spec["rank"], "id": order["id"]}
        try:
            if order["probe"] == "open" and spec["namespace"]:  # what came before belongs to the machine, not the node
                enter(spec["namespace"])
            answer["value"] = probes.carry_out(order)
        except Exception as error:
            answer["error"] = error_words(error)
        _say(wire, answer)


def enter(namespace: str) -> None:
    """Move this thread, and those that it starts, into a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")
    finally:
        os.close(descriptor)


def name_process(name: str) -> None:
    """What `ps` and `top` call it."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def _die_with_parent() -> None:
    if Path("/proc/self").exists():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _connection(address: str) -> IO[bytes]:
    wire = socket.socket(socket.AF_UNIX)
    wire.connect(address)
    return cast("IO[bytes]", wire.makefile("rwb"))


def _say(wire: IO[bytes], value: dict[str, Any]) -> None:
    wire.write(json.dumps(value).encode() + b"\n")
    wire.flush()


if __name__ == "__main__":
    main()

"""A TCP connection from one network namespace into another.

    python -m tests.kube.lab.tunnel --from PID|self ADDRESS:PORT --to PID|self ADDRESS:PORT [--ready FILE]

A socket stays in the namespace in which it was made, so a process that changes over in between can hold both ends.
Port 0 takes a free one; FILE then says which.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000


def tunnel_command(holder: int, *, inside: str, outside: str, inwards: bool, ready: Path) -> list[object]:
    """The command line that joins an address in the network of process `holder` with one of ours.

    Args:
        inwards: our programs reach `inside`; otherwise those inside reach `outside`.
    """
    there, here = [str(holder), inside], ["self", outside]
    near, far = (here, there) if inwards else (there, here)
    return [sys.executable, "-m", "tests.kube.lab.tunnel", "--from", *near, "--to", *far, "--ready", ready]


def enter_network(of: str) -> None:
    """Move this process into the network of another one."""
    with open(f"/proc/{of}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"no way into the network of process {of}")


def listen(address: str) -> socket.socket:
    """A listening socket in the network that this process is in."""
    host, _, port = address.rpartition(":")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((host, int(port)))
    found.listen(128)
    return found


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on, a broken connection as a broken one."""
    try:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def serve(listening: socket.socket, target: str) -> None:
    """Join each connection with one of its own to the target."""
    host, _, port = target.rpartition(":")

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        far_writer.close()
        writer.close()

    server = await asyncio.start_server(join, sock=listening)
    await server.serve_forever()


def main() -> None:
    """Listen there, connect here."""
    parser = argparse.ArgumentParser(prog="tests.kube.lab.tunnel")
    parser.add_argument("--from", nargs=2, dest="near", required=True)
    parser.add_argument("--to", nargs=2, dest="far", required=True)
    parser.add_argument("--ready", type=Path)
    asked = parser.parse_args()
    own = str(os.getpid())
    # Opened before the first change: `self` would later mean another network.
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    near, far = ((own if of == "self" else of, address) for of, address in (asked.near, asked.far))
    if near[0] != own:
        enter_network(near[0])
    listening = listen(near[1])
    if ctypes.CDLL(None, use_errno=True).setns(home, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no way back")
    if far[0] != own:
        enter_network(far[0])
    if asked.ready:
        half = asked.ready.with_suffix(".half")
        half.write_text(str(listening.getsockname()[1]))
        half.replace(asked.ready)
    asyncio.run(serve(listening, far[1]))


if __name__ == "__main__":
    main()

"""A Ray head with a dashboard, and further nodes, on ports of their own; they end with the test, however that ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_S = 180.0
# Not `--block`: it ends the head when Ray's client server is late, as on a loaded machine. The keeper ends exactly the
# processes that name the head's folder (`ray stop` would end every Ray of the machine) once its own input is closed.
KEEPER = """
import subprocess, sys, psutil
folder, command = sys.argv[1], sys.argv[2:]
subprocess.run(command, stdin=subprocess.DEVNULL)
sys.stdin.read()
mine = [p for p in psutil.process_iter(["cmdline"]) if any(folder in part for part in p.info["cmdline"] or ())]
mine = [p for p in mine if p.pid != psutil.Process().pid]
for process in mine:
    process.terminate()
for process in psutil.wait_procs(mine, timeout=10)[1]:
    process.kill()
"""


@dataclass(frozen=True)
class Head:
    """A running head: its dashboard, and what drivers and further nodes join."""

    dashboard: str
    address: str
    folder: Path

    def add_node(self, name: str, *, cpus: int) -> None:
        """Another raylet on this machine."""
        command = [str(Path(sys.executable).parent / "ray"), "start", f"--address={self.address}"]
        command += [f"--num-cpus={cpus}", f"--node-name={name}", "--object-store-memory=80000000"]
        command += ["--disable-usage-stats", f"--temp-dir={self.folder}/r"]
        deadline = time.monotonic() + START_S
        while True:  # a head that has just begun knows nothing of itself yet, for long on a busy machine
            left_s = deadline - time.monotonic()
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left_s)
            if done.returncode == 0:
                return
            if "No node info found" not in done.stderr + done.stdout or time.monotonic() > deadline - 5:
                raise AssertionError(f"no node {name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            time.sleep(1)

    def drain_node(self, name: str, *, deadline_s: int) -> None:
        """Say that it will be taken away, as a cloud does of a spot machine."""
        from ray._raylet import GcsClient

        nodes = GcsClient(address=self.address).get_all_node_info().values()
        (node_id,) = [node.node_id.hex() for node in nodes if node.node_name == name]
        command = [str(Path(sys.executable).parent / "ray"), "drain-node", f"--address={self.address}"]
        command += [f"--node-id={node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        command += [f"--deadline-remaining-seconds={deadline_s}"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=START_S)

    def kill_node(self, name: str) -> None:
        """SIGKILL its raylet, as when a machine goes away."""
        raylets = [p for p in psutil.process_iter(["name", "cmdline"]) if p.info["name"] == "raylet"]
        (lost,) = [p for p in raylets if any(part.endswith(f"node-name={name}") for part in p.info["cmdline"])]
        lost.kill()


@contextmanager
def ray_head(environment: dict[str, str], *, cpus: int = 2) -> Iterator[Head]:
    """`environment` is what the cluster's processes get besides ours."""
    folder = Path(tempfile.mkdtemp(prefix="wbhead-", dir="/tmp"))
    gcs, dashboard, agent, client = _free_ports(4)
    scripts = Path(sys.executable).parent
    command = [str(scripts / "ray"), "start", "--head", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", f"--num-cpus={cpus}"]
    command += ["--min-worker-port=10100", "--max-worker-port=10999", "--object-store-memory=150000000"]
    command += [f"--temp-dir={folder}/r", "--disable-usage-stats"]
    own = {"PATH": f"{scripts}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    own["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = "150"  # 30 s are not enough on a busy machine
    with (folder / "head.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **own, **environment},
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{dashboard}"
        _wait(keeper, address, folder / "head.log")
        yield Head(address, f"127.0.0.1:{gcs}", folder)
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait(keeper: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and keeper.poll() is None:
        try:
            if httpx.get(f"{address}/api/version", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.3)
    raise AssertionError(f"no head: {log.read_text()[-3000:]}")

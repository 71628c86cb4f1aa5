"""A Ray head with a dashboard for the tests of submission, on ports of its own; ends with the test, however that
ends.
"""

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
from pathlib import Path

import httpx

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


@contextmanager
def ray_head(environment: dict[str, str]) -> Iterator[str]:
    """Yields the dashboard's address. `environment` is what the cluster's processes get besides ours."""
    folder = Path(tempfile.mkdtemp(prefix="wbhead-", dir="/tmp"))
    gcs, dashboard, agent, client = _free_ports(4)
    scripts = Path(sys.executable).parent
    command = [str(scripts / "ray"), "start", "--head", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", "--num-cpus=2"]
    command += ["--min-worker-port=10100", "--max-worker-port=10999", "--object-store-memory=150000000"]
    command += [f"--temp-dir={folder}/r", "--disable-usage-stats"]
    own = {"PATH": f"{scripts}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
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
        yield address
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

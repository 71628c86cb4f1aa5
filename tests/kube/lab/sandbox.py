"""Private network, mount and control-group namespaces, and the processes in them.

Nothing of a laboratory reaches the machine's own network or mounts; only tunnels lead in and out (tunnel.py). All
namespaces go with the last process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kube.lab import cgroups
from tests.kube.lab.layout import API, REPOSITORY, Place, node_address, node_bridge
from warpbeam.storage.processes import ProcessIdentity, identify, is_running

HOLDER = "sandbox"
"""The process that keeps the namespaces; it does nothing else."""


class LabError(RuntimeError):
    """The laboratory cannot do what it was asked."""


def wait_for(what: str, ready: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Poll until it is so.

    Raises:
        LabError: it was not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.1)


@dataclass(frozen=True)
class Sandbox:
    """The namespaces of one laboratory."""

    place: Place

    def open(self, nodes: int) -> None:
        """Make them, with a network device for each node."""
        groups = cgroups.make(self.place.name)
        self.place.write("groups.json", json.dumps(list(map(str, groups))))
        self.place.write("resolv.conf", f"nameserver {API}\nsearch svc.cluster.local cluster.local\noptions ndots:3\n")
        hold = [f"touch {self._ready}", "exec sleep infinity"]
        script = self.place.write("sandbox.sh", "\n".join(["set -e", *self._mounts(), *_network(nodes), *hold]))
        command = ["unshare", "--mount", "--net", "--cgroup", "--propagation", "private", "bash", str(script)]
        self._popen(HOLDER, command)
        wait_for("namespaces", lambda: self._ready.exists() or not self.runs(HOLDER))
        if not self._ready.exists():
            raise LabError(f"no namespaces here: {self.log(HOLDER)}")

    @property
    def _ready(self) -> Path:
        return self.place.root / "sandbox.ready"

    def _mounts(self) -> list[str]:
        """Its own view of control groups, of /run and of /var, so that no daemon writes into the machine's."""
        root = self.place.root
        trees = cgroups.hierarchies()
        lines = ["umount -R -l /sys", "mount -t sysfs sysfs /sys", "mount -t tmpfs tmpfs /sys/fs/cgroup"]
        for tree in trees:
            target = f"/sys/fs/cgroup/{tree.folder}"
            lines += [f"mkdir {target}", f"mount -t cgroup -o {tree.options} cgroup {target}"]
        upper, work = root / "var/upper", root / "var/work"
        for folder in (upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        lines += [
            "mount -t tmpfs tmpfs /run",
            f"mount -t overlay overlay -o lowerdir=/var,upperdir={upper},workdir={work} /var",
            f"mount --bind {root}/resolv.conf /etc/resolv.conf",
            "mount --make-rshared /",
        ]
        return lines

    def pid(self, name: str) -> int:
        """Of a process that was started."""
        return self._identity(name).pid

    def command(self, *words: object) -> list[str]:
        """The same command, inside."""
        return ["nsenter", "--target", str(self.pid(HOLDER)), "--mount", "--net", "--cgroup", *map(str, words)]

    def run(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside, to its end.

        Raises:
            LabError: it failed, and `check` asked.
        """
        done = subprocess.run(
            self.command(*words), text=True, capture_output=True, stdin=subprocess.DEVNULL, preexec_fn=self._join
        )
        if check and done.returncode != 0:
            raise LabError(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}".strip())
        return done

    def spawn(self, name: str, command: Sequence[object], *, inside: bool = True) -> None:
        """Start a lasting process. It is written down, and its output goes to logs/NAME.log."""
        words = [str(word) for word in command]
        self._popen(name, self.command(*words) if inside else words)

    def _popen(self, name: str, command: list[str]) -> None:
        self.place.logs.mkdir(parents=True, exist_ok=True)
        self.place.processes.mkdir(parents=True, exist_ok=True)
        with (self.place.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._join,
                cwd=REPOSITORY,
                env={key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
            )
        identity = identify(child.pid)
        child.returncode = 0  # it outlives this program; Popen would warn about that
        if identity is None:
            raise LabError(f"{name} has ended at once: {self.log(name)}")
        (self.place.processes / name).write_text(json.dumps(asdict(identity)))

    def _join(self) -> None:
        cgroups.join(self.place.groups)

    def _identity(self, name: str) -> ProcessIdentity:
        try:
            return ProcessIdentity(**json.loads((self.place.processes / name).read_text()))
        except FileNotFoundError:
            raise LabError(f"{name} has not been started in {self.place.root}") from None

    def runs(self, name: str) -> bool:
        """Whether this very process is alive."""
        try:
            identity = self._identity(name)
        except LabError:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(identity.pid, os.WNOHANG)  # else a child of ours that has ended would look alive
        return is_running(identity)

    def started(self) -> list[str]:
        """Names of all processes that were started."""
        folder = self.place.processes
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process and to what belongs to it; SIGKILL waits for its end."""
        identity = self._identity(name)
        if self.runs(name):
            os.killpg(identity.pid, number)
        if number is signal.SIGKILL:
            wait_for(f"the end of {name}", lambda: not self.runs(name))

    def log(self, name: str, lines: int = 12) -> str:
        """The end of what it has printed."""
        path = self.place.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"

    def close(self) -> None:
        """End every process and remove every file.

        Raises:
            LabError: something is still mounted below the folder, where removing files would reach other people's.
        """
        cgroups.end(self.place.groups)
        root = str(self.place.root)
        mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {root}/" in line]
        if mounted:
            raise LabError(f"still mounted, nothing is removed: {mounted[0]}")
        shutil.rmtree(self.place.root, ignore_errors=True)


def _network(nodes: int) -> list[str]:
    """The machine's address on the loopback device, and a bridge for each node's pods."""
    lines = ["ip link set lo up", f"ip address add {API}/32 dev lo"]
    for number in range(1, nodes + 1):
        bridge = node_bridge(number)
        lines += [f"ip link add {bridge} type bridge", f"ip address add {node_address(number)}/24 dev {bridge}"]
        lines += [f"ip link set {bridge} up"]
    # Servers look for the address that leads out; nothing is there.
    lines += [f"ip route add default dev {node_bridge(1)} src {API}", "sysctl -qw net.ipv4.ip_forward=1"]
    return lines

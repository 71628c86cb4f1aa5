"""Get a Ray to work with: the cluster this command runs in, or one of our own on this machine.

Starting one costs seconds, so it runs on a thread of its own while the driver does other things. That thread must
live as long as the Ray it started: Ray asks the kernel to kill its servers when their *parent thread* ends.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.launch.ray_start import lean_and_patient
from warpbeam.launch.ray_train import import_ahead
from warpbeam.pool import Pool
from warpbeam.precedence import standing_back

OBJECT_STORE_BYTES = 200_000_000
WORKERS_END_S = 5.0
_TEMP_PREFIX = "wbray-"
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # our capture takes what ranks print, at the file descriptor
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # how soon the end of an attempt is noticed
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process more at every start; what it sees, our attempts survive
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a rank's working folder stays the bundle
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DEDUP_LOGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
# A Ray of our own has no dashboard and no second user. What would serve them costs the ranks two percent of their speed
# on two cores.
_OWN_RAY = {
    "RAY_worker_niceness": "0",  # ranks would otherwise stand behind everything else
    "RAY_num_workers_soft_limit": "0",  # Ray Data's workers end when the data is prepared, not with the run
    "RAY_idle_worker_killing_time_threshold_ms": "15000",  # but not those that have yet to be used
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
}
# A rank's loop runs in a thread. glibc gives threads heaps of 64 MB, which come and go with a step's large tensors
# (train/heap.py); with one for all it stays. And in huge pages, where the system gives them to whoever asks.
_CPU_RANKS = {"MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class RayNeeds:
    """What the driver wants of Ray.

    Args:
        world_size: ranks of the plan.
        start_timeout_s: how long ranks may wait for their place.
        python_path: folders that workers must be able to import from.
    """

    world_size: int
    start_timeout_s: float
    python_path: tuple[str, ...]


def joined_address() -> str | None:
    """The cluster that this process was started in (`ray job submit` says so), or None."""
    address = os.environ.get("RAY_ADDRESS")
    if address and address.startswith(("http://", "https://")):
        raise UserError(
            f"RAY_ADDRESS is a dashboard's address: {address}",
            why="a training driver runs inside the cluster; a dashboard takes jobs",
            fix=f"`warpbeam submit JOB.yaml --address {address}`, or unset RAY_ADDRESS to train on this machine",
            reason="ray_address",
        )
    return address or None


def set_environment(pool: Pool, needs: RayNeeds) -> None:
    """Settings that Ray's processes and our workers inherit. They go through the environment of this process, never
    through Ray's metadata, which is stored and shown.
    """
    own_ray = {} if joined_address() else _OWN_RAY | (_CPU_RANKS if pool.is_cpu else {})
    for name, value in {**_ENVIRONMENT, **own_ray, **pool.env}.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(needs.start_timeout_s)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_rank(pool, needs.world_size)))
    scripts = str(Path(sys.executable).parent)
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if scripts not in folders:
        os.environ["PATH"] = os.pathsep.join([scripts, *folders])
    paths = [*needs.python_path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def threads_per_rank(pool: Pool, world_size: int) -> int:
    """CPU threads that a rank may use without fighting its neighbours."""
    ranks_on_node = math.ceil(world_size / pool.nodes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, cores // ranks_on_node)


class RaySession:
    """Starts or joins Ray in the background; `up` waits for it; `close` ends what was started here."""

    def __init__(self, pool: Pool, needs: RayNeeds) -> None:
        self._pool = pool
        self._needs = needs
        self._address = joined_address()
        self._ended = threading.Event()
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._temp: Path | None = None
        set_environment(pool, needs)
        self._thread = threading.Thread(target=self._serve, name="ray-session", daemon=True)
        self._thread.start()

    @property
    def is_local(self) -> bool:
        """Whether this machine's own Ray is used."""
        return self._address is None

    @property
    def failed(self) -> bool:
        """Whether it came to nothing: another attempt needs another session."""
        return self._error is not None

    def up(self, timeout_s: float | None = None) -> bool:
        """Wait until Ray can be used, or for `timeout_s`; raises why it cannot."""
        if not self._up.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._translate(self._error) from self._error
        return True

    def close(self) -> None:
        """Disconnect, and end a Ray of our own with everything in it."""
        self._ended.set()
        self._thread.join(timeout=30)
        if self._temp:
            shutil.rmtree(self._temp, ignore_errors=True)

    def _serve(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._error = error
        self._up.set()
        if self._error is None:
            self._ended.wait()
        workers = _workers() if self.is_local else []
        with contextlib.suppress(ImportError):
            import ray

            ray.shutdown()  # also what a broken start left behind
        _end(workers)

    def _start(self) -> None:
        import ray
        import ray._private.worker as driver_side

        # Ray's servers need seconds to come up; what the driver imports next takes as long, and is wanted right after.
        # Only now that `ray` itself is imported: two threads in one half-imported package trip over each other.
        threading.Thread(target=import_ahead, name="import-ahead", daemon=True).start()
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Whatever `log_to_driver` says, Ray prints raylets' essays on dead workers to stdout; we report those deaths.
        driver_side.print_to_stdstream = lambda *arguments, **options: None
        if self._address is not None:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            return
        _sweep_leftovers()
        # Unix socket paths may have 107 bytes, and Ray adds about 60 of its own: a short folder directly in /tmp.
        parent = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()
        self._temp = Path(parent) / f"{_TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(2)}"
        self._temp.mkdir(mode=0o700)
        with lean_and_patient(), standing_back():  # ranks step in front again
            ray.init(
                address="local",
                num_cpus=self._local_cpus(),
                include_dashboard=False,
                _temp_dir=str(self._temp),
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def _local_cpus(self) -> int:
        """Cores, or more where the ranks would leave none for data preparation: waiting tasks would say nothing."""
        cores = self._pool.accelerators_per_node if self._pool.is_cpu else (os.cpu_count() or 1)
        return max(cores, math.ceil(self._needs.world_size * self._pool.cpus_per_worker) + 1)

    def _translate(self, error: BaseException) -> WarpbeamError:
        if isinstance(error, WarpbeamError):
            return error
        if isinstance(error, ImportError):
            return PlatformError(
                "Ray is not installed here",
                why=str(error),
                fix="`pip install 'warpbeam[train]'`; or send the job to a cluster: `warpbeam submit`",
                reason="no_ray",
            )
        where = f"cluster {self._address}" if self._address else "local Ray"
        return InfraError(
            f"the {where} could not be reached" if self._address else "a local Ray could not be started",
            why=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="look at the disk and memory of this machine, then run the same command again",
            reason="ray_start",
        )


def _workers() -> list[psutil.Process]:
    """Processes that our own raylet has started."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            if child.name() == "raylet":
                return child.children(recursive=True)
    return []


def _end(workers: list[psutil.Process]) -> None:
    """A worker may lock itself up in Ray's own exit handlers (seen with Train's controller), and then keeps its memory
    until the machine is started anew."""
    _, left = psutil.wait_procs(workers, timeout=WORKERS_END_S)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _sweep_leftovers() -> None:
    """Remove folders of earlier drivers of this user that were killed."""
    for folder in Path("/tmp").glob(f"{_TEMP_PREFIX}*-*"):
        pid = folder.name.removeprefix(_TEMP_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            mine = folder.stat().st_uid == os.getuid()
            if mine and pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                shutil.rmtree(folder, ignore_errors=True)

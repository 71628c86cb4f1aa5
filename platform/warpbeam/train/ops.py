"""DeepSpeed's compiled operators, built before they are needed and loaded without a compiler.

DeepSpeed compiles an operator at its first use: a silent minute in every fresh environment, an endless wait behind the
lock of a build that was killed, and a page of ninja output where a compiler is missing. Here `make install` builds what
CPU runs need (`python -m warpbeam.train.ops`), a launch checks or builds with progress, and the ranks only load.

A finished build carries a stamp (versions, CPU); without the right stamp it is built anew. Our lock is the kernel's, so
it ends with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from warpbeam.errors import PlatformError

# Builder class names in DeepSpeed by our word for the operator. The shared-memory collective serves only DeepSpeed's
# inference; it is here for plain DeepSpeed scripts (our benchmarks' baselines), which compile it at start.
BUILDERS = {"cpu_adam": "CPUAdamBuilder", "async_io": "AsyncIOBuilder", "deepspeed_shm_comm": "ShareMemCommBuilder"}
STAMP = "warpbeam.json"
BUILD_TIMEOUT_S = 1800
REBUILD = "python -m warpbeam.train.ops"

Say = Callable[[str], None]


def extensions_dir() -> Path:
    """Where operators live: inside the environment, so that a clone or an image carries its own."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def prepare_environment() -> None:
    """Point this process and its children at the persistent operators, and put the environment's `ninja` on PATH."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions_dir())
    scripts = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if scripts not in path:
        os.environ["PATH"] = os.pathsep.join([scripts, *path])


def ops_for(offload: str) -> tuple[str, ...]:
    """Operators that a DeepSpeed run with this `parallelism.offload` uses."""
    return {"none": (), "cpu": ("cpu_adam",), "nvme": ("cpu_adam", "async_io")}[offload]


def is_built(op: str) -> bool:
    """Whether a finished build for this very environment and CPU is there."""
    folder = extensions_dir() / op
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == _fingerprint(op)) and _library(op).is_file()


def missing_tools() -> list[str]:
    """What a build needs and this machine lacks."""
    missing = []
    if not (shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")):
        missing.append("a C++ compiler (c++ or g++)")
    if not shutil.which("ninja"):
        missing.append("ninja")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("Python's headers (Python.h)")
    return missing


def ensure(ops: Sequence[str], say: Say = print) -> None:
    """Build what is not built yet. Called before a launch, once a node; ranks call `load`.

    Raises:
        PlatformError: something the build needs is missing, the folder cannot be written, or the compiler failed.
    """
    prepare_environment()
    for op in ops:
        if is_built(op):
            continue
        lacking = missing_tools()
        if lacking:
            raise PlatformError(
                f"DeepSpeed's {op} cannot be built on {platform.node()}: {' and '.join(lacking)} not found",
                why=f"the job's offload needs it, and {extensions_dir() / op} holds no finished build for this machine",
                fix=f"install {' and '.join(lacking)}, then: {REBUILD} {op}; or set parallelism.offload to none",
                reason="op_tools_missing",
            )
        with _lock(op, say):
            if not is_built(op):
                _build(op, say)


def load(ops: Sequence[str]) -> None:
    """Give DeepSpeed what is built, without compiler, ninja and lock. Ranks call this before any engine is made."""
    prepare_environment()
    for op in ops:
        if not is_built(op):
            raise PlatformError(
                f"DeepSpeed's {op} is not built on {platform.node()}",
                why=f"{extensions_dir() / op} holds no finished build for this environment and CPU",
                fix=f"run there: {REBUILD} {op}",
                reason="op_not_built",
            )
        from deepspeed.ops.op_builder.builder import OpBuilder

        if op == "cpu_adam" and op not in OpBuilder._loaded_ops:  # others need more libraries: DeepSpeed loads them
            OpBuilder._loaded_ops[op] = _import(op)


def skip_inference_ops() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce at start: only its inference engine calls it."""
    import deepspeed.ops

    # The dict is otherwise made at first access, by starting compilers to probe some thirty operators.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False


def skip_muon_compilation() -> None:
    """Keep DeepSpeed from importing torch's compiler at every engine start, five seconds of CPU time in each rank.

    It imports its Muon optimizer to compare types, and that module compiles functions when it is imported. Whoever
    chose Muon would get the same functions uncompiled; our optimizers are AdamW.
    """
    from deepspeed.runtime import compiler

    compiling = compiler.compile
    compiler.compile = lambda *_, **__: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = compiling


def _library(op: str) -> Path:
    return extensions_dir() / op / f"{op}.so"


def _import(op: str) -> Any:
    path = str(_library(op))
    spec = importlib.util.spec_from_loader(op, importlib.machinery.ExtensionFileLoader(op, path))
    assert spec is not None
    assert spec.loader is not None
    import torch  # noqa: F401  (the library links against it)

    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fingerprint(op: str) -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "deepspeed")}
    return {"op": op, "python": platform.python_version(), "cpu": _cpu(), **versions}


def _cpu() -> str:
    """The machine and its instruction sets: builds are for the native CPU and fault on a lesser one."""
    flags = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        flags = next(
            (" ".join(sorted(line.split(":", 1)[1].split())) for line in lines if line.startswith("flags")), ""
        )
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def _lock(op: str, say: Say) -> Iterator[None]:
    root = extensions_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / f".{op}.lock").open("w")
    except OSError as error:
        raise PlatformError(
            f"DeepSpeed's {op} cannot be built on {platform.node()}: {root} cannot be written",
            why=str(error),
            fix=f"make it writable, or point TORCH_EXTENSIONS_DIR to a folder that is, then: {REBUILD} {op}",
            reason="op_folder_read_only",
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {op}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(op: str, say: Say) -> None:
    """One build in its own process, from an empty folder (a killed build leaves objects and a dead lock behind)."""
    folder = extensions_dir() / op
    shutil.rmtree(folder, ignore_errors=True)
    log = extensions_dir() / f"{op}.log"
    say(f"building DeepSpeed's {op} (once for this environment, about a minute)")
    command = [sys.executable, "-m", "warpbeam.train.ops", "--compile", op]
    environment = {**os.environ, **({} if shutil.which("c++") else {"CXX": os.environ.get("CXX", "g++")})}
    started = time.monotonic()
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        finished = threading.Event()
        beat = threading.Thread(target=_say_progress, args=(op, started, finished, say), daemon=True)
        beat.start()
        try:
            code = process.wait(timeout=BUILD_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            finished.set()
    if code != 0 or not _library(op).is_file():
        errors = [line.strip() for line in log.read_text(errors="replace").splitlines() if "rror" in line]
        raise PlatformError(
            f"DeepSpeed's {op} did not compile on {platform.node()}",
            why=" | ".join(errors[-3:]),
            fix=f"read {log}; then: {REBUILD} {op}",
            reason="op_build_failed",
        )
    (folder / STAMP).write_text(json.dumps(_fingerprint(op), indent=1))
    say(f"built {op} in {time.monotonic() - started:.0f} s")


def _say_progress(op: str, started: float, finished: threading.Event, say: Say) -> None:
    while not finished.wait(15):
        say(f"building {op}: {time.monotonic() - started:.0f} s")


def _compile(op: str) -> None:
    """The body of the building process: DeepSpeed's own recipe, in this folder."""
    import deepspeed  # noqa: F401
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(BUILDERS[op])
    if op == "async_io" and not builder.is_compatible():
        raise RuntimeError("Error: libaio is missing; install libaio-dev (Debian, Ubuntu) or libaio-devel")
    builder.load()


def main(arguments: Sequence[str]) -> int:
    """`python -m warpbeam.train.ops [OP...]`: build the named operators, or those that CPU runs need."""
    if arguments[:1] == ["--compile"]:
        _compile(arguments[1])
        return 0
    names = list(arguments) or ["cpu_adam"]
    unknown = sorted(set(names) - set(BUILDERS))
    if unknown:
        print(f"unknown operator {unknown[0]}: known are {', '.join(BUILDERS)}", file=sys.stderr)
        return 2
    try:
        ensure(names, say=lambda text: print(text, flush=True))
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"ready in {extensions_dir()}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

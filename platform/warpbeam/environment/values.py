"""Rules about single values: those that a library cannot read, and those that cost more than they give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warpbeam.environment.setting import Check, Environment, Finding, Ground, Level

_P2P: Final = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "NCCL_DEBUG": ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_P2P_LEVEL": _P2P,
    "NCCL_NET_GDR_LEVEL": ("LOC", "PIX", "PXB", "PHB", "SYS"),
    "NCCL_CROSS_NIC": ("0", "1", "2"),
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO", "DETAIL"),
}
"""Variables that take one of a few words; the levels may be numbers too."""
_NUMBERED: Final = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")
_RAISES: Final = ("TORCH_DISTRIBUTED_DEBUG",)
"""Where a wrong word is an exception when the group forms; NCCL goes on with its default."""
_NCCL_NUMBERS: Final = re.compile(
    r"NCCL_((P2P|SHM|IB|NVLS|NVB|PXN|RAS|GRAPH_MIXING|CUMEM|MNNVL|DMABUF|GDRCOPY|COLLNET)_(DISABLE|ENABLE)"
    r"|(MIN|MAX)_(NCHANNELS|CTAS|P2P_NCHANNELS)|NTHREADS|BUFFSIZE|SOCKET_NTHREADS|NSOCKS_PERTHREAD"
    r"|IB_(GID_INDEX|TC|SL|TIMEOUT|RETRY_CNT|QPS_PER_CONNECTION|SPLIT_DATA_ON_QPS|PCI_RELAXED_ORDERING|ADAPTIVE_ROUTING)"
    r"|NET_GDR_READ|IGNORE_CPU_AFFINITY|CHECK_POINTERS)"
)
_TORCH_NUMBERS: Final = re.compile(r"TORCH_NCCL_(?!DEBUG_INFO_)\w+|TORCH_FR_BUFFER_SIZE")
_ARCHES: Final[Mapping[str, str]] = {
    "V100": "7.0",
    "T4": "7.5",
    "A100": "8.0",
    "A10": "8.6",
    "L4": "8.9",
    "H100": "9.0",
    "H200": "9.0",
    "B200": "10.0",
    "GB200": "10.0",
}
"""Compute capability by kind (NVIDIA's table of CUDA GPUs)."""


@dataclass(frozen=True)
class _Costly:
    """A value that is legal and rarely meant."""

    variable: str
    when: Callable[[str], bool]
    what: str
    why: str
    do: str
    level: Level = Level.WARNING


def _on(value: str) -> bool:
    return value not in ("0", "OFF", "off", "false", "False")


def _off(value: str) -> bool:
    return not _on(value)


_LEAVE: Final = "leave it out"
_COSTLY: Final = (
    _Costly(
        "NCCL_DEBUG",
        lambda value: value.upper() in ("INFO", "TRACE"),
        "was left on",
        "thousands of lines a rank at each start, in which the one that matters is lost; TRACE slows collectives down",
        "write WARN",
    ),
    _Costly(
        "TORCH_DISTRIBUTED_DEBUG",
        lambda value: value.upper() == "DETAIL",
        "was left on",
        "each collective is preceded by a second one that compares shapes over all ranks",
        "write OFF; the flight recorder says the same after a time-out",
    ),
    _Costly("CUDA_LAUNCH_BLOCKING", _on, "waits for every kernel", "nothing overlaps: a fraction of the speed", _LEAVE),
    _Costly(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        _on,
        "turns torch's allocator off",
        "each tensor is a cudaMalloc that stops the device",
        _LEAVE,
    ),
    _Costly(
        "NCCL_CHECK_POINTERS", _on, "checks each pointer of each call", "a debugging aid that costs latency", _LEAVE
    ),
    _Costly(
        "NCCL_P2P_DISABLE",
        _on,
        "turns NVLink and PCIe peer access off",
        "GPUs of one node then talk through host memory, at a tenth of the speed",
        "leave it out; for a machine whose PCIe ACS hangs peer access, mend the ACS setting",
    ),
    _Costly(
        "NCCL_SHM_DISABLE",
        _on,
        "turns shared memory off",
        "ranks of one node without peer access then talk over the network",
        "leave it out, and give pods a /dev/shm that is large enough (Warpbeam's manifests do)",
    ),
    _Costly(
        "NCCL_PROTO",
        lambda value: "LL128" in value.upper() and not value.startswith("^"),
        "forces LL128",
        "where the platform does not keep 128-byte stores whole it corrupts data without a word (NCCL's own warning)",
        "leave it out; NCCL uses LL128 where it is safe",
        Level.ERROR,
    ),
    _Costly(
        "NCCL_ALGO",
        lambda value: not value.startswith("^"),
        "fixes the algorithm",
        "what was best for one size and number of nodes is slow for others, and some collectives then fail",
        "leave it out, unless you have measured this very job",
    ),
    _Costly(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        lambda value: value == "0",
        "turns the watchdog off",
        "when one rank dies, the others wait in their collective for ever and keep their GPUs",
        "leave it out",
        Level.ERROR,
    ),
    _Costly(
        "TORCH_NCCL_BLOCKING_WAIT",
        _on,
        "makes the host wait for each collective",
        "nothing overlaps with communication any more",
        _LEAVE,
    ),
    _Costly(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        _off,
        "turns the flight recorder's dump off",
        "after a hang nobody can say which rank was missing in which collective",
        _LEAVE,
    ),
    _Costly(
        "TORCH_FR_BUFFER_SIZE",
        _off,
        "turns the flight recorder off",
        "after a hang nobody can say which rank was missing in which collective",
        _LEAVE,
    ),
    _Costly(
        "DS_SKIP_CUDA_CHECK",
        _on,
        "builds DeepSpeed's kernels against another CUDA than torch's",
        "they load, and crash or compute wrongly in the step",
        "use an image whose CUDA matches torch's: `warpbeam version --check`",
    ),
)


def costly(env: Environment, _: Ground) -> Iterator[Finding]:
    """Legal, and rarely what is wanted in a training that is to be fast and to be understood when it fails."""
    for rule in _COSTLY:
        value = env.get(rule.variable)
        if value is not None and rule.when(value):
            name = f"costly_{rule.variable.lower()}"
            yield env.finding(name, rule.level, rule.variable, rule.what, why=rule.why, do=rule.do)


def quoted(env: Environment, _: Ground) -> Iterator[Finding]:
    """Quotes that a shell would have taken away reach the library as part of the value."""
    for name, setting in env.settings.items():
        value = setting.value
        if value != value.strip() or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
            yield env.finding(
                "quoted",
                Level.ERROR,
                name,
                "has quotes or white space inside the value",
                why="in a YAML file no shell takes them away: the library looks for a name with quotes in it",
                do=f"write {value.strip().strip(chr(39) + chr(34)).strip()}",
            )


def wrong_word(env: Environment, _: Ground) -> Iterator[Finding]:
    """One of a few words is wanted, and this is none of them."""
    for name, words in _WORDS.items():
        value = env.get(name)
        if value is None or value.upper() in words or (name in _NUMBERED and value.isdigit()):
            continue
        raises = name in _RAISES
        yield env.finding(
            "wrong_word",
            Level.ERROR if raises else Level.WARNING,
            name,
            f"is none of {', '.join(words)}",
            why="torch raises when the group forms" if raises else "NCCL goes on as if it were not set",
            do=f"write one of {', '.join(words)}",
        )


def no_number(env: Environment, _: Ground) -> Iterator[Finding]:
    """A whole number is wanted; `true` is none."""
    for name, setting in env.settings.items():
        of_torch = _TORCH_NUMBERS.fullmatch(name) is not None
        if not of_torch and not _NCCL_NUMBERS.fullmatch(name):
            continue
        if env.get(name) is None or env.number(name) is not None:
            continue
        word = setting.value.strip().lower()
        yield env.finding(
            "no_number",
            Level.ERROR if of_torch else Level.WARNING,
            name,
            "is no whole number",
            why="torch raises when the group forms" if of_torch else "NCCL goes on as if it were not set",
            do="write 1" if word in ("true", "yes", "on") else "write 0" if word in ("false", "no", "off") else _LEAVE,
        )


def other_architecture(env: Environment, ground: Ground) -> Iterator[Finding]:
    """Kernels built for other GPUs than the pool's."""
    value, kind = env.get("TORCH_CUDA_ARCH_LIST"), re.match(r"[A-Za-z]+\d+", ground.accelerator)
    wanted = _ARCHES.get(kind.group().upper()) if kind else None
    if value is None or wanted is None:
        return
    built = [arch.removesuffix("+PTX").rstrip("a") for arch in re.split(r"[;\s]+", value)]
    if wanted not in built and "+PTX" not in value:
        yield env.finding(
            "other_architecture",
            Level.ERROR,
            "TORCH_CUDA_ARCH_LIST",
            f"does not name {wanted}, which is {ground.accelerator}",
            why="kernels built by it end with `no kernel image is available for execution on the device`",
            do=f'write "{wanted}"',
        )


def other_accelerator(env: Environment, ground: Ground) -> Iterator[Finding]:
    """DeepSpeed told to use something else than the pool has."""
    value = env.get("DS_ACCELERATOR")
    wanted = "cuda" if ground.on_gpu else "cpu"
    if value is not None and value != wanted and not ground.accelerator.upper().startswith("TPU"):
        yield env.finding(
            "other_accelerator",
            Level.ERROR,
            "DS_ACCELERATOR",
            f"is {value}, and the pool has {ground.accelerator}",
            why="DeepSpeed would put its states elsewhere than torch puts the model",
            do=f"write {wanted}, or leave it out",
        )


CHECKS: Final[tuple[Check, ...]] = (costly, quoted, wrong_word, no_number, other_architecture, other_accelerator)

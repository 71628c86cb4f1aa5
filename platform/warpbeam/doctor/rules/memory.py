"""Memory that ran out: of the host, of a GPU."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

KILLED = says(
    r"return code ?[=:]? ?-9\b",
    r"exit ?code:? ?\(?(-9|137)\b",
    r"exit(ed|s)?( with)?( code| status)?:? (-9|137)\b",
    r"signal 9\b",
    r"sigkill",
    r"killed by signal: killed",
    r"status 137|^killed$",
    at=HINT,
    unless=r"potential root causes|common causes include|may have exceeded",
)
HOST_MEMORY_FULL = told(
    r"\b(host|cpu|system|node|container|pod)\b.{0,20}\b(memory|ram)\b.{0,30}(full|exhaust|used up|100 ?%|ran out"
    r"|running out)",
    r"\bd?ram\b.{0,30}(full|exhaust|100 ?%|ran out|running out)",
    at=LIKELY,
    unless=r"cuda|gpu memory|/dev/shm|disk|hbm",
)
DIED = says(r"rank \d+ died without a word", at=HINT)
KERNEL_KILLS = says(
    r"kernel: ended \d+ process\(es\) of this ((?P<container>container)|machine) for want of memory", at=HINT
)
NOT_MEMORY = says(
    r"preempt",
    r"evict",
    r"node shutdown",
    r"drain",
    r"scancel",
    r"keyboardinterrupt",
    r"sigterm",
    r"liveness probe",
    at=HINT,
)


def _killed(facts: Facts) -> tuple[list[Fact], float]:
    """Killed from outside without a traceback: memory, most of the time; with a full host, surely."""
    kills, full = facts.of(KILLED), facts.of(HOST_MEMORY_FULL)
    if not kills or facts.has(NOT_MEMORY):
        return NOTHING
    return [*full, *kills], 0.88 if full else 0.7


def _died_for_memory(facts: Facts) -> tuple[list[Fact], float]:
    """A rank that died without a word while the kernel ended a process for want of memory: its container's, surely;
    one of the machine's, which may have been somebody else's, most likely."""
    died, kills = facts.of(DIED), facts.of(KERNEL_KILLS)
    if not died or not kills:
        return NOTHING
    return [*died, *kills], SURE if any(fact.words.get("container") for fact in kills) else LIKELY


RULES = (
    Rule(
        name="kernel_ended_rank",
        kind=Kind.HOST_OOM,
        owner="platform",
        cause="a rank was killed by the kernel: the memory of its container or machine ran out",
        do="a larger memory limit for the workers, or less held in memory: offload, loader workers, prefetch",
        scope="rank",
        signals=(DIED, KERNEL_KILLS),
        judge=_died_for_memory,
    ),
    Rule(
        name="kernel_oom",
        kind=Kind.HOST_OOM,
        owner="platform",
        cause="the node or the container ran out of memory, and a process was killed for it",
        do="a larger memory limit for the workers, or less held in memory: offload, loader workers, prefetch",
        scope="rank",
        signals=(
            says(
                r"(killed|terminated)\b.{0,20}\boom\b", at=LIKELY, unless=r"cuda|gpu|\bhead\b|common causes|root causes"
            ),
            says(
                r"oom[-_ ]?kill",
                r"out of memory: kill",
                r"invoked oom",
                r"memory cgroup out of memory",
                r"killed process \d+",
                at=SURE,
                unless=r"\bhead\b|gcs|autoscaler|potential root causes|common causes include|may have exceeded",
            ),
            says(
                r"memory monitor",
                r"node running low on memory",
                r"ray\.exceptions\.outofmemoryerror",
                r"killed due to .{0,40}memory",
                r"memory usage threshold",
                r"above the memory",
                at=SURE,
            ),
            says(
                r"\b(memoryerror|std::bad_alloc)\b",
                r"defaultcpuallocator: .{0,40}(can't|not enough)",
                r"unable to allocate .{0,40} for an array",
                at=SURE,
            ),
            says(
                r"cannot allocate memory",
                r"errno 12\b",
                r"fork failed.{0,40}memory",
                at=LIKELY,
                unless=r"ibv_|cuda|/dev/shm|nccl",
            ),
            HOST_MEMORY_FULL,
        ),
    ),
    Rule(
        name="killed_without_words",
        kind=Kind.HOST_OOM,
        owner="platform",
        cause="a process was killed from outside without a traceback, most likely because host memory ran out",
        do="confirm with the pod's last state or dmesg; then a larger memory limit, or less held in memory",
        scope="rank",
        signals=(KILLED, HOST_MEMORY_FULL, NOT_MEMORY),
        judge=_killed,
    ),
    Rule(
        name="gpu_out_of_memory",
        kind=Kind.GPU_OOM_ONE_RANK,
        owner="ml",
        cause="a rank ran out of GPU memory",
        do="a smaller micro-batch, activation checkpointing or more sharding; `warpbeam plan` says what fits",
        scope="rank",
        signals=(
            says(r"failed to cuda [cm]alloc", at=LIKELY),
            says(r"\boutofmemoryerror\b", at=LIKELY, unless=r"ray\.exceptions|running low|java|due to"),
            says(
                r"(cuda|hip|xpu|npu|gpu) out of memory",
                r"torch\.(cuda\.)?outofmemoryerror",
                at=SURE,
                unless=r"skipp?ing|retrying with",
            ),
            says(
                r"cuda (error|failure).{0,20}out of memory",
                r"cudaerrormemoryallocation",
                r"cuda_error_out_of_memory",
                r"cudamalloc.{0,40}(fail|out of memory)",
                at=LIKELY,
            ),
            says(r"cublas_status_alloc_failed", r"cudnn_status_alloc_failed", at=POSSIBLE),
            told(
                r"\b(oom|out of memory)\b.{0,40}(on |in )?(rank|gpu)",
                r"(rank|gpu) ?\d+.{0,60}\b(oom|out of memory|outofmemory\w*)\b",
                at=LIKELY,
                unless=r"oom[-_]?kill|host|killed process",
            ),
        ),
    ),
)

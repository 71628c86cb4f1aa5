"""Limits of the container: shared memory."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, SURE, says

BUS_ERROR = says(r"bus error", r"sigbus", r"signal 7\b", r"exit ?code:? -7\b", at=HINT)
USES_SHM = says(
    r"\bnccl\w*\(",
    r"libnccl",
    r"in nccl",
    r"nccl error",
    r"dataloader",
    r"/dev/shm",
    r"\bshm\b",
    r"shared memory",
    at=HINT,
)
SHM_SIZE = says(r"/dev/shm.{0,40}\b(16|32|64) ?mi?b?\b", r"\b(16|32|64) ?mi?b?\b.{0,40}/dev/shm", at=LIKELY)


def _unbacked_page(facts: Facts) -> tuple[list[Fact], float]:
    """SIGBUS where NCCL or a loader runs: the page of a shared segment could not be backed."""
    errors, users = facts.of(BUS_ERROR), facts.of(USES_SHM)
    return ([*errors, *users], 0.9) if errors and users else NOTHING


RULES = (
    Rule(
        name="shm_segment_refused",
        kind=Kind.SHM_TOO_SMALL,
        owner="platform",
        cause="/dev/shm in the container is too small for the segments of NCCL or of the data loaders",
        do="a memory-backed volume at /dev/shm of the workers, sized for all their ranks; then start again",
        scope="node",
        signals=(
            says(r"failed to extend /dev/shm", at=SURE),
            says(
                r"(creating|create|attach\w*|open\w*|extend\w*|map\w*|resiz\w*"
                r"|allocat\w*)( \w+){0,3} shared memory (segment|file|object|region)",
                at=SURE,
                unless=r"permission|too many open files",
            ),
            says(
                r"/dev/shm/\S*.{0,120}(no space left|cannot allocate|too small|size)",
                r"no space left.{0,80}(/dev/shm|shm|nccl)",
                at=SURE,
                unless=r"object store is using /tmp|/dev/shm/plasma",
            ),
            says(
                r"out of shared memory",
                r"insufficient shared memory",
                r"raise your shared memory limit",
                r"shared memory limit",
                at=SURE,
            ),
            says(r"(dataloader|loader) workers? .{0,40}bus error", at=SURE),
            says(
                r"unable to write to file </?torch_\d+",
                r"unable to (mmap|allocate) \d+ bytes from file </torch_",
                r"torch_shm_manager",
                at=SURE,
                unless=r"too many open files",
            ),
            says(r"(shm_open|posix_fallocate|ftruncate|shmget).{0,80}(fail|no space|error)", at=LIKELY),
            says(r"call to posix_fallocate failed", at=SURE),
            SHM_SIZE,
        ),
    ),
    Rule(
        name="shm_page_unbacked",
        kind=Kind.SHM_TOO_SMALL,
        owner="platform",
        cause="a process died of SIGBUS while it touched shared memory: /dev/shm of the container is too small",
        do="a memory-backed volume at /dev/shm of the workers, sized for all their ranks; then start again",
        scope="rank",
        signals=(BUS_ERROR, USES_SHM),
        judge=_unbacked_page,
    ),
)

"""What Warpbeam itself has seen while the run was up: its monitor of heartbeats, and the phases of a launch."""

from __future__ import annotations

from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import Rule
from warpbeam.doctor.signal import LIKELY, POSSIBLE, says

SEEN = 0.88
"""It was watched, twice; but what was seen may follow from what a program says outright."""

RULES = (
    Rule(
        name="rank_lags_in_heartbeats",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="one rank's last step is behind all others'",
        do="look at that rank's own log and stack first",
        retry="may help",
        scope="rank",
        signals=(says(r"heartbeats: rank (?P<late>\d+) stood at step \d+", at=LIKELY),),
    ),
    Rule(
        name="rank_without_heartbeats",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="one rank gave no sign of life any more while the others waited for it: stopped, frozen, or cut off",
        do="look at that rank's process and machine; start again, it resumes at the newest checkpoint",
        retry="may help",
        scope="rank",
        signals=(says(r"heartbeats: rank (?P<absent>\d+) has given no sign for \d+ s", at=SEEN),),
    ),
    Rule(
        name="rank_left_the_loop",
        kind=Kind.DATA_EXHAUSTION,
        owner="ml",
        cause="a rank has left the loop over batches, and the others wait for its part of the next step",
        do="the same number of steps on all ranks: no `break` that only some reach, equal shares of the data",
        scope="rank",
        signals=(says(r"heartbeats: rank (?P<left>\d+) has left the loop after step \d+", at=SEEN),),
    ),
    Rule(
        name="rank_slower_than_its_peers",
        kind=Kind.STRAGGLER,
        owner="infra",
        cause="one rank takes longer than its peers for what each does alone, and sets everyone's pace",
        do="look at that rank's machine: what else runs there, its clocks and limits; take it out and compare",
        scope="rank",
        signals=(says(r"heartbeats: rank (?P<slow>\d+) is slower than its peers", at=POSSIBLE),),
    ),
    Rule(
        name="worker_never_came",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="platform",
        cause="a rank's worker never gave a sign of life, so that the launch waits for it",
        do="look at that worker's machine and at Ray's logs there",
        retry="may help",
        scope="rank",
        signals=(
            says(r"launch: .{0,60}no sign of rank (?P<missing>\d+)$", at=LIKELY),
            says(r"launch: .{0,80}rank (?P<silent>\d+) does not answer", at=LIKELY),
        ),
    ),
    Rule(
        name="no_room_for_workers",
        kind=Kind.INFEASIBLE_PLACEMENT,
        owner="platform",
        cause="the cluster has no room for all workers: {short}",
        do="free it, ask for fewer accelerators, or `accelerators: {{min, max}}`",
        retry="may help",
        signals=(says(r"waiting for (?P<short>\d[\d.]* \w+ \(\d[\d.]* in the cluster, \d[\d.]* free\))", at=LIKELY),),
    ),
    Rule(
        name="group_does_not_form",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="all workers have started, but cannot make a process group: they do not reach each other",
        do="open ports between the workers' machines, the interface that connects them (GLOO_/NCCL_SOCKET_IFNAME)",
        signals=(
            says(
                r"launch: all \d+ workers have started, the process group has not formed",
                at=POSSIBLE,
                unless=r"does not answer",
            ),
        ),
    ),
)

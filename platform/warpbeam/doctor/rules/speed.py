"""Nothing fails, but a slow rank, node or path sets everyone's pace."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, says, told

STEP_TIME = says(
    r"(elapsed time per iteration|step[ _]time|iteration time|iter_time|time/step"
    r"|s/it)\b[^0-9]{0,12}(?P<seconds>\d+(\.\d+)?)\b",
    at=HINT,
)
UNBOUND = told(
    r"cpu[-_ ]?bind\w*\S*none",
    r"(no|without|missing|wrong|bad) (cpu|numa|core) ?(binding|affinity|pinning)",
    r"\bnuma\b.{0,40}(domain|node|bind|remote|cross|wrong)",
    r"(cpu )?governor.{0,20}powersave",
    r"cpu (quota|limit).{0,40}throttl",
    r"nr_throttled",
    r"omp_num_threads.{0,60}(oversubscri|too many|unset|contention)",
    at=LIKELY,
    unless=r"nccl info",
)
SLOWER = 1.03
"""From the first to the last printed step: beyond what steps of one run differ by."""


def _steps_grow(facts: Facts) -> tuple[list[Fact], float]:
    """Step times that rise steadily, with nothing else wrong."""
    steps = facts.of(STEP_TIME)
    times = [float(fact.words["seconds"]) for fact in steps]
    if len(times) < 3 or times[-1] < times[0] * SLOWER or times[-1] < max(times):
        return NOTHING
    return steps, POSSIBLE


RULES = (
    Rule(
        name="gpu_throttled",
        kind=Kind.STRAGGLER,
        owner="infra",
        cause="a GPU runs below its clocks: heat, power or a slowdown signal",
        do="take the node out; cooling and power, then measure again",
        scope="node",
        signals=(
            says(
                r"(hw|sw)[ _](thermal[ _])?slowdown.{0,20}(: ?active|active)",
                r"thermal (throttl|slowdown|violation)\w*",
                r"power brake",
                r"clocks?_?(event|throttle)_?reasons?.{0,40}(slowdown|thermal|: active|power)",
                r"throttl\w+.{0,30}(gpu|clock|thermal)",
                r"(gpu|clock)\w*.{0,40}throttl",
                at=LIKELY,
                unless=r"not active",
            ),
            told(r"\d{3,4} ?mhz\b.{0,40}\b(others?|peers?|instead|vs|expected)\b", at=LIKELY),
            told(r"(sm )?clocks?.{0,30}(stuck|dropped|low(er)?|locked|capped|reduced).{0,30}(mhz)?", at=POSSIBLE),
        ),
    ),
    Rule(
        name="pcie_degraded",
        kind=Kind.STRAGGLER,
        owner="infra",
        cause="a PCIe link runs at a lower speed or width than it should",
        do="take the node out; reseat the card or riser, then compare `lspci -vv` LnkSta with LnkCap",
        scope="node",
        signals=(
            says(
                r"\(downgraded\)",
                r"(lnksta|pcie|link).{0,60}(downgraded|degraded|width x[1248]\b|gen ?[12]\b|2\.5gt/s)",
                at=LIKELY,
                unless=r"ok\)|nvlink.{0,20}active",
            ),
        ),
    ),
    Rule(
        name="slow_transport",
        kind=Kind.STRAGGLER,
        owner="platform",
        cause="NCCL fell back to a slower path: sockets, or RDMA without GPUDirect",
        do="mend the plugin, HCA or peer-memory module in image and nodes",
        signals=(
            says(r"gpu ?direct rdma .{0,20}disabled", at=LIKELY),
            says(
                r"failed to open libibverbs",
                r"using network socket",
                r"net/ib ?: ?no device found",
                r"falling back to (tcp|sockets?)",
                r"fall(s|ing)? ?back to (the )?(tcp|socket)",
                at=POSSIBLE,
            ),
            told(
                r"(busbw|bus bandwidth|throughput|all_?reduce|bandwidth)\b.{0,60}(drop|lower|slow|only|instead"
                r"|degrad|below|->|down|fell|half)",
                at=POSSIBLE,
                unless=r"scale down",
            ),
        ),
    ),
    Rule(
        name="slow_node",
        kind=Kind.STRAGGLER,
        owner="infra",
        cause="one node or GPU is slower than its peers, and everyone waits for it",
        do="take the node out and compare step times; run its benchmark alone",
        scope="node",
        signals=(
            told(r"(node|rank|gpu)-?\S* \d+(\.\d+)? ?m?s\b.{0,20}\bothers?\b", at=LIKELY),
            told(
                r"\b(straggler|slow(er|est)?)\b.{0,40}\b(node|gpu|rank|host|machine|worker|device)s?\b",
                r"\b(node|gpu|rank|host|machine|worker)s?\b.{0,60}(\d+(\.\d+)? ?(%|x|times)|much|is|are|was) slower",
                at=LIKELY,
                unless=r"network plugin|storage",
            ),
        ),
        unless=(UNBOUND,),
    ),
    Rule(
        name="ranks_not_bound",
        kind=Kind.STRAGGLER,
        owner="platform",
        cause="the ranks are not bound to the CPUs beside their GPUs, so that they disturb each other",
        do="bind each rank to its NUMA domain in the launcher or the pod (`--cpu-bind`, static CPU manager)",
        scope="node",
        signals=(UNBOUND,),
    ),
    Rule(
        name="steps_grow_slower",
        kind=Kind.STRAGGLER,
        owner="infra",
        cause="step times rose in the middle of the run without a restart",
        do="exclude nodes in turn, or run each node's benchmark alone; take the slow one out",
        signals=(STEP_TIME,),
        judge=_steps_grow,
    ),
)

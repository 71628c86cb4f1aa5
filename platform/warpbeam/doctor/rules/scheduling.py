"""Placement: pods and bundles that no node takes, gangs of which only a part starts, the Ray autoscaler."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, state, told

PENDING = state(r"\bpending\b", at=HINT)
RUNNING = state(r"\brunning\b", r"created pod", at=HINT)
NO_ROOM = says(
    r"insufficient (?P<what>nvidia\.com/gpu|amd\.com/gpu|cpu|memory|rdma/\S+|\S+/\S+)", r"too many pods", at=HINT
)
NO_MATCH = says(
    r"untolerated taint", r"node\(s\) had taints?", r"didn'?t match (pod'?s )?(node )?(affinity|selector)", at=LIKELY
)
QUOTA = says(r"exceeded quota", r"quota exceeded", at=LIKELY, unless=r"disk quota")


MINIMUM = says(r"\bmin_?(member|available|resources)\b:? ?\d+", at=POSSIBLE)


ERROR = says(r"\b\w+(error|exception)\b", at=HINT, unless=r"metrics server|connection|timed? ?out")


def _in_its_log(facts: Facts) -> tuple[list[Fact], float]:
    """An exception in a log of the autoscaler."""
    own = [fact for fact in facts.of(ERROR) if "autoscaler" in fact.source.where]
    return (own, LIKELY) if own else NOTHING


def _part_of_a_gang(facts: Facts) -> tuple[list[Fact], float]:
    """Waiting pods beside running ones: the running ones hold what the waiting ones need."""
    waiting, running = facts.of(NO_ROOM, PENDING), facts.of(RUNNING)
    if waiting and running:
        return [*waiting, *running], 0.88 if facts.has(NO_ROOM) else 0.75
    return NOTHING


def _never_fits(facts: Facts) -> tuple[list[Fact], float]:
    """No room on any node, while nothing of this job runs: the request may be larger than any node."""
    return facts.of(NO_ROOM), POSSIBLE


RULES = (
    Rule(
        name="quota_stops_the_gang",
        kind=Kind.HALF_STARTED_GANG,
        owner="platform",
        cause="the namespace's quota forbids some of the job's pods, so that the group stays incomplete",
        do="raise the ResourceQuota, or ask for fewer accelerators; then start again",
        signals=(QUOTA,),
    ),
    Rule(
        name="gang_without_room",
        kind=Kind.HALF_STARTED_GANG,
        owner="platform",
        cause="a part of the job is placed and holds its accelerators, the rest finds no room",
        do="place the group as a whole (gang scheduler, Kueue); free accelerators or ask for fewer",
        retry="may help",
        scope="pod",
        signals=(NO_ROOM, PENDING, RUNNING),
        judge=_part_of_a_gang,
    ),
    Rule(
        name="gang_minimum_unmet",
        kind=Kind.HALF_STARTED_GANG,
        owner="platform",
        cause="the scheduler waits for the gang's minimum of pods, which cannot be reached",
        do="make the gang's minimum equal to the pods that the job creates, and let the quota hold them",
        signals=(
            told(r"\b\d+ of \d+ \w+ (are )?(pending|not ready|unschedulable|gated)", at=LIKELY),
            says(
                r"rejected due to timeout after waiting|optimistic rejection|cannot find enough sibling pods", at=LIKELY
            ),
            says(r"pod ?group.{0,80}(not ready|unschedulable|not enough|pending|inqueue)", at=LIKELY),
            told(r"min_?(member|available).{0,60}(not (met|satisf)|unmet|>|more than|larger)", at=LIKELY),
            MINIMUM,
            says(r"gang.{0,60}(unschedul|incomplete|not (ready|scheduled|satisf)|rejected)", at=LIKELY),
            told(
                r"\d+ (of|/) ?\d+ (pods|workers|replicas|members) (are )?(running|ready|scheduled|started)", at=POSSIBLE
            ),
            state(r"(deadlock|hold(s|ing)? .{0,30}gpus).{0,60}(pending|wait)", at=POSSIBLE),
        ),
    ),
    Rule(
        name="no_node_matches",
        kind=Kind.INFEASIBLE_PLACEMENT,
        owner="platform",
        cause="no node carries the labels, or tolerates being used, as the pod asks",
        do="add the toleration or node selector of the pool to the pod, or the label to the nodes",
        scope="pod",
        signals=(NO_MATCH,),
        unless=(QUOTA,),
    ),
    Rule(
        name="pod_fits_no_node",
        kind=Kind.INFEASIBLE_PLACEMENT,
        owner="platform",
        cause="no node has that much {what} free",
        do="compare one pod's request with the largest single node; make pods smaller, or the group larger",
        scope="pod",
        signals=(NO_ROOM,),
        unless=(RUNNING,),
        judge=_never_fits,
    ),
    Rule(
        name="bundles_never_fit",
        kind=Kind.INFEASIBLE_PLACEMENT,
        owner="ml",
        cause="the placement group asks for more than the cluster's nodes and limits can ever give",
        do="ask for bundles that fit one node and for no more than the group's maximum, or raise the maximum",
        signals=(
            told(r"pending placement groups?.{0,40}(total|max)", at=0.76),
            says(r"placement group creation timed out", at=LIKELY),
            says(r"no available node types? can fulfill", at=LIKELY),
            says(
                r"(task|actor|request|placement group|bundle|resource)s?.{0,60}\binfeasible\b",
                r"\binfeasible (task|actor|resource|placement)",
                at=LIKELY,
            ),
            told(
                r"(cannot|can't|can ?not|never) be (scheduled|placed|satisfied)( right)?.{0,80}",
                at=POSSIBLE,
                unless=r"right now|cannot be scheduled yet",
            ),
            told(
                r"(exceeds?|greater than|larger than|more than).{0,40}(available|total|number of) (gpus?|cpus?"
                r"|nodes?|resources)",
                at=LIKELY,
                unless=r"memory|vocab",
            ),
            told(r"not enough (gpu|cpu|resources|nodes)", r"insufficient (cluster )?resources", at=POSSIBLE),
            told(r"strict_(pack|spread).{0,120}(pending|fail|not|only|cannot|never)", at=LIKELY),
        ),
    ),
    Rule(
        name="autoscaler_misses_resources",
        kind=Kind.AUTOSCALER,
        owner="platform",
        cause="the autoscaler does not know what resources a worker group has, so it never adds one",
        do="state CPU and GPU limits (or rayStartParams num-cpus, num-gpus) in that group; then start again",
        signals=(
            says(r"could not find a node type to satisfy", at=SURE),
            says(r"autoscaler failed to detect .{0,40} resources", at=SURE),
            state(r"raystartparams: ?\{\}", at=HINT),
        ),
    ),
    Rule(
        name="autoscaler_down",
        kind=Kind.AUTOSCALER,
        owner="platform",
        cause="the autoscaler itself fails, so that nothing scales",
        do=(
            "read its container's last error; usually a missing field of the group, a missing right, or "
            "another version than the head's"
        ),
        scope="pod",
        signals=(
            says(r"serviceaccount\S* .{0,40}cannot (list|patch|get|create)", at=LIKELY),
            says(
                r"autoscaler.{0,80}(crashloopbackoff|oomkilled|traceback|exited|crash|keyerror|error state|forbidden)",
                at=LIKELY,
            ),
            says(
                r"(standardautoscaler|monitor\.py|autoscaler\.py|node_provider).{0,120}(error|exception|fail"
                r"|forbidden)",
                at=LIKELY,
                unless=r"metrics server",
            ),
            says(r"(forbidden|cannot (patch|get|list)).{0,120}rayclusters?", at=LIKELY),
            says(r"crashloopbackoff.{0,20}autoscaler", at=LIKELY),
        ),
    ),
    Rule(
        name="autoscaler_container_fails",
        kind=Kind.AUTOSCALER,
        owner="platform",
        cause="the autoscaler's own log ends in an error",
        do="mend what its error names: the group's fields, its rights, or its version; then start again",
        scope="pod",
        signals=(ERROR,),
        judge=_in_its_log,
    ),
    Rule(
        name="autoscaler_removes_workers",
        kind=Kind.AUTOSCALER,
        owner="platform",
        cause="the autoscaler takes workers away that the job still needs",
        do="a longer idleTimeoutSeconds, or minReplicas equal to the job's workers while it runs",
        retry="may help",
        signals=(
            says(r"removing \d+ nodes?\b", at=LIKELY),
            says(
                r"(idle|scal(e|ing)[- ]?down|downscal).{0,80}(terminat|remov|delet|kill)",
                at=LIKELY,
                unless=r"terminating idle (connection|session)",
            ),
            says(
                r"(terminat|remov|delet|kill)\w* .{0,60}"
                r"(\bidle (for|since|node|worker|timeout)|idle_?timeout|max_workers|scale[- ]?down)",
                at=LIKELY,
            ),
            told(r"workerstodelete", r"idletimeoutseconds", r"idle_timeout_minutes", at=POSSIBLE),
        ),
    ),
    Rule(
        name="autoscaler_does_not_add",
        kind=Kind.AUTOSCALER,
        owner="platform",
        cause="there is demand, but the autoscaler adds no workers",
        do="look at `ray status`: demand, limits and the groups' resources; the operator's version and its rights",
        retry="may help",
        signals=(
            told(
                r"replicas? (reset|overwritten|reverted|set back)|desired \d+,? (got|have|current|actual) \d+",
                at=LIKELY,
            ),
            says(r"failed to launch \d+ node", r"launch_failed|nodelaunchexception", at=LIKELY),
            told(
                r"autoscal.{0,80}(not|never|no longer|stops?|fails to) (scal|add|launch|creat|upscal|request)",
                at=LIKELY,
            ),
            told(r"(does not|doesn't|won't|never|not) (scale|upscale|scaling|autoscale)", at=POSSIBLE),
            told(r"(maxreplicas|max_workers|max workers).{0,60}(reached|limit|exceed|0\b)", at=POSSIBLE),
            told(r"(resource demands|pending demands|pending tasks).{0,120}(no|not|unmet|unsatisf)", at=POSSIBLE),
        ),
        unless=(QUOTA,),
    ),
)

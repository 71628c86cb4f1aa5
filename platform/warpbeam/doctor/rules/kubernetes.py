"""Kubernetes below the scheduler: images, and launchers that outlive their ranks."""

from __future__ import annotations

import re

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, SURE, says, told

PULL_BACKOFF = says(r"imagepullbackoff", r"errimagepull", r"back-off pulling image", at=LIKELY)
PULL_FAILED = says(r"failed to pull( and unpack)? image", r"error response from daemon: (pull|manifest)", at=LIKELY)
WRONG_NAME = says(
    r"manifest (for .{1,200} )?(unknown|not found)",
    r"invalidimagename",
    r"couldn'?t parse image",
    r"no matching manifest|no match for platform in manifest",
    r"(image|tag|manifest)\S* .{0,80}not found",
    at=SURE,
    unless=r"no image found in",
)
NO_ACCESS = says(
    r"pull access denied",
    r"unauthorized: |401 unauthorized",
    r"authentication required",
    r"no basic auth credentials",
    r"toomanyrequests",
    r"pull rate limit",
    r"imagepullsecrets?",
    r"x509: .{0,80}(unknown authority|expired)",
    r"registry.{0,80}(unreachable|i/o timeout|refused|denied)",
    r"403 forbidden.{0,40}(registry|pull|manifests)",
    r"(registry|manifests).{0,80}403 forbidden",
    at=LIKELY,
)

DEATH = told(
    r"exit(ed|s|ing)?( with)?( return)? ?(code|status)?[ :=]+-?[1-9]\d*",
    r"return code ?[=:]? ?-?[1-9]",
    r"\b(dies|died|dead|killed|crash(ed|es)?|aborted|failed|segfault\w*|sig(kill|term|abrt|segv))\b",
    r"traceback \(most recent",
    r"\braise[sd]?\b",
    r"\w+error\b",
    at=HINT,
)
NEVER_ENDS = (
    r"((do|does|did|will|would|could|can) ?n[o'o]t|doesn't|didn't|won't|never|fails? to) "
    r"(exit|return|terminate|end|stop|finish|die|quit|notice|kill|propagate|detect|clean|tear|reap|abort|shut)\w*"
)
LAUNCHER = (
    r"\b(launcher|torchrun|elastic agent|deepspeed|mpirun|mpiexec|srun|pdsh|ssh|parent|main process|accelerate|spawn\w*"
    r"|job|rayjob|trainjob|pytorchjob|mpijob|launch\.py|horovodrun|submitter|raycluster)\b.{0,60}"
)
LAUNCHER_STAYS = told(
    LAUNCHER + NEVER_ENDS,
    LAUNCHER + r"(still|remains?|stays?|keeps?|kept|left) (running|alive|waiting|hanging|up|hung|active|in running)",
    LAUNCHER + r"\b(stuck|wedged|leaks?|leaked)\b",
    LAUNCHER + r"(keeps|leaves|holds) (the )?(remaining|other|surviving)",
    r"no sig(term|kill) (is |was )?sent|sig(term|kill) (is|was) not (sent|forwarded|propagated|delivered)",
    LAUNCHER + r"(hangs?|waits?) (forever|indefinitely|for (all|the other|remaining))",
    at=HINT,
)
PEERS_STAY = told(
    r"(still|remains?|stays?|keeps?|kept|left|continues?) (to )?"
    r"(run(ning)?|alive|waiting|hanging|up|hung|holding|active|occupy\w*|busy|behind)",
    r"\bzombies?\b|<?defunct>?|\borphan\w*",
    r"keeps? (their|its|the) (workers?|processes|ranks)|(processes|ranks|workers) (are )?alive|running until",
    r"kill[-_]on[-_]bad[-_]exit",
    r"running\b.{0,30}gpus? idle",
    NEVER_ENDS,
    at=HINT,
)


HELD = told(r"\b(waits?|waiting|hangs?|sleep\w*|stuck|blocked|blocks)\b", at=HINT)
_LAUNCHER_PLACE = re.compile(r"launch|agent|torchrun|mpirun|srun|process table|\bps\b|elastic|spawn", re.IGNORECASE)


def _launcher_held(facts: Facts) -> tuple[list[Fact], float]:
    """A rank's death, and a launcher whose own lines say that it waits."""
    held = [fact for fact in facts.of(HELD) if _LAUNCHER_PLACE.search(fact.source.where)]
    dead = [fact for fact in facts.of(DEATH) if fact.text not in {one.text for one in held}]
    return ([*held, *dead], 0.78) if dead and held else NOTHING


def _outlives(facts: Facts) -> tuple[list[Fact], float]:
    """A rank's death, and a launcher that lives on: both have to be said."""
    dead, stays = facts.of(DEATH), facts.of(LAUNCHER_STAYS)
    return ([*stays, *dead], 0.9) if dead and stays else NOTHING


def _peers_outlive(facts: Facts) -> tuple[list[Fact], float]:
    """A rank's death, and processes that live on, without a word of the launcher."""
    stays = facts.of(PEERS_STAY)
    dead = [fact for fact in facts.of(DEATH) if fact.text not in {one.text for one in stays}]
    return ([*stays, *dead], 0.7) if dead and stays else NOTHING


RULES = (
    Rule(
        name="image_reference_wrong",
        kind=Kind.IMAGE_PULL,
        owner="ml",
        cause="the image or tag does not exist in the registry",
        do="correct the image's tag or digest, then submit again",
        scope="pod",
        signals=(WRONG_NAME,),
        needs=(
            PULL_BACKOFF,
            PULL_FAILED,
            says(r"\bpull(ing)?\b", r"image", at=HINT),
        ),
        unless=(NO_ACCESS,),
    ),
    Rule(
        name="registry_refuses",
        kind=Kind.IMAGE_PULL,
        owner="platform",
        cause="the registry refuses the pull: credentials, rate limit or its certificate",
        do="give the pod's service account a working pull secret, or mirror the image",
        scope="pod",
        signals=(NO_ACCESS,),
        needs=(
            PULL_BACKOFF,
            PULL_FAILED,
            says(r"pull access denied", r"imagepullsecrets?", r"pull rate limit", at=HINT),
        ),
    ),
    Rule(
        name="image_not_pulled",
        kind=Kind.IMAGE_PULL,
        owner="ml",
        cause="a pod waits for an image that cannot be pulled",
        do="look at the pod's events for the registry's answer; correct the image reference, then submit again",
        scope="pod",
        signals=(PULL_BACKOFF, PULL_FAILED),
        unless=(NO_ACCESS,),
    ),
    Rule(
        name="launcher_outlives_rank",
        kind=Kind.LAUNCHER_NO_EXIT,
        owner="platform",
        cause="a rank is dead, but its launcher does not end the others: the job looks alive",
        do="end the job by hand; start it with a launcher that ends all ranks when one dies",
        signals=(DEATH, LAUNCHER_STAYS),
        judge=_outlives,
    ),
    Rule(
        name="dead_beside_running",
        kind=Kind.LAUNCHER_NO_EXIT,
        owner="platform",
        cause="a part of the job has failed, the rest runs on and holds its accelerators",
        do="end the job by hand; a clean-up policy or launcher that ends all when one dies",
        signals=(
            told(r"side ?car\b.{0,60}(running|alive|never|keeps|does not)", at=0.78),
            told(r"\b(continues|goes on|runs on|lives on)\b.{0,30}\bafter\b.{0,40}(exit|died|fail|kill|crash)", at=0.8),
            told(r"\b(failed|died|exited|crashed)\b.{0,60}\bkeeps? (their|its|the)\b", at=0.76),
            told(
                r"\b(failed|error|crashed|died|exited)\b.{0,40}\b(workers?|others?|rest|pods?|ranks?)\b.{0,20}\brunning\b",
                r"\bdefunct\b|\bzombie\b",
                at=0.76,
            ),
        ),
    ),
    Rule(
        name="launcher_waits",
        kind=Kind.LAUNCHER_NO_EXIT,
        owner="platform",
        cause="a rank is dead, and the launcher waits instead of ending the others",
        do="end the job by hand; start it with a launcher that ends all ranks when one dies",
        signals=(DEATH, HELD),
        judge=_launcher_held,
    ),
    Rule(
        name="processes_outlive_rank",
        kind=Kind.LAUNCHER_NO_EXIT,
        owner="platform",
        cause="a rank is dead, but other processes of the job live on and hold its accelerators",
        do="end the job by hand; start it with a launcher that ends all ranks when one dies",
        signals=(DEATH, PEERS_STAY),
        judge=_peers_outlive,
    ),
)

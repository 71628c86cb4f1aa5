"""Ray itself: versions, packages of a job, the head and its GCS."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

DIFFERENT = (
    says(
        r"version mismatch: .{0,40}\bray\b",
        r"version mismatch: the cluster was started with",
        r"this process on node .{0,60}was started with",
        at=SURE,
    ),
    says(
        r"\bray\b.{0,60}version.{0,60}(mismatch|differ|not match|incompatible|inconsistent)",
        r"(mismatch|differ\w*|incompatible).{0,30}\bray version",
        at=SURE,
        unless=r"crd|autoscaler version",
    ),
    says(
        r"python (minor |patch )?versions?.{0,60}(mismatch|differ|not match|incompatible|must match)",
        r"client python version",
        r"(mismatch\w*|different) python version",
        at=LIKELY,
    ),
    says(r"installation incompatible with server", r"changing the ray version is not allowed", at=SURE),
    says(r"ray client.{0,120}(version|protocol)", r"client version .{0,40}does not match", at=LIKELY),
    says(
        r"unsupported pickle protocol",
        r"bad marshal data",
        r"unknown opcode",
        r"code\(\) (argument|takes)",
        at=POSSIBLE,
        unless=r"torch\.load",
    ),
    says(r"modulenotfounderror: no module named 'ray\.\w+", r"cannot import name '\w+' from 'ray", at=POSSIBLE),
)
INSIDE_THE_CLUSTER = told(
    r"\b(worker|head) (pods?|group|image|node)\b|ray start|rayproject/ray:|workergroup|containers?:|rayversion", at=HINT
)
RELEASE = told(r"\bray[ :=v]+(?P<release>\d+\.\d+\.\d+)", at=HINT, unless=r"2\.\d+\.\d+ (or|and) (newer|later)")


def _releases_differ(facts: Facts) -> tuple[list[Fact], float]:
    """Two places that name different releases of Ray."""
    by_place = {fact.source.where: fact for fact in facts.of(RELEASE)}
    releases = {fact.words["release"] for fact in by_place.values()}
    return (list(by_place.values()), 0.85) if len(releases) > 1 else NOTHING


RULES = (
    Rule(
        name="ray_client_differs",
        kind=Kind.RAY_VERSION,
        owner="ml",
        cause="the process that joined or submitted has another Ray or Python than the cluster",
        do=(
            "run it in the cluster's image, or submit over the Jobs API; end a stale cluster on that host "
            "(`ray stop`, unset RAY_ADDRESS)"
        ),
        signals=DIFFERENT,
        unless=(INSIDE_THE_CLUSTER,),
    ),
    Rule(
        name="ray_nodes_differ",
        kind=Kind.RAY_VERSION,
        owner="platform",
        cause="head and workers of the cluster run different versions of Ray or Python",
        do="one image, by digest, for the head and all worker groups; rayVersion as in the image",
        signals=DIFFERENT,
        needs=(INSIDE_THE_CLUSTER,),
    ),
    Rule(
        name="ray_releases_differ",
        kind=Kind.RAY_VERSION,
        owner="ml",
        cause="client and cluster have different releases of Ray",
        do="the cluster's release where the job is submitted, or submit over the Jobs API",
        signals=(RELEASE,),
        judge=_releases_differ,
        unless=(INSIDE_THE_CLUSTER,),
    ),
    Rule(
        name="package_too_large",
        kind=Kind.RAY_JOB_SUBMIT,
        owner="ml",
        cause="the job's working directory is too large to be uploaded",
        do="leave out .git, data and checkpoints (`excludes`, .rayignore), or name a remote URI",
        signals=(
            says(
                r"request entity too large",
                r"httprequestentitytoolarge",
                r"package size .{0,60}exceeds",
                r"exceeds the maximum size of \d+",
                at=SURE,
                unless=r"image|s3",
            ),
            says(r"(working_dir|runtime_env|package).{0,80}(too large|exceed|too big|larger than|size limit)", at=SURE),
        ),
    ),
    Rule(
        name="runtime_env_fails",
        kind=Kind.RAY_JOB_SUBMIT,
        owner="ml",
        cause="the job's runtime environment cannot be set up on the cluster",
        do="read the setup's log; dependencies belong into the image, the code into the working directory",
        signals=(
            says(
                r"runtimeenvsetuperror",
                r"runtime[_ ]env(ironment)?.{0,100}(fail|error|invalid|not (found|supported|set up)|timed? ?out"
                r"|unexpected)",
                at=SURE,
                unless=r"agent.{0,60}(unreachable|connect)",
            ),
            says(
                r"(working_dir|py_modules).{0,80}(fail|invalid|not (found|exist|a)|does not exist|missing|no such"
                r"|error|ignored)",
                at=LIKELY,
            ),
            says(
                r"failed to (install|upload|download|unpack|package|import).{0,60}(runtime|working_dir|package"
                r"|pip|conda|module|requirements)",
                at=LIKELY,
                unless=r"image|dataset|huggingface",
            ),
            says(
                r"(job )?entrypoint (command )?.{0,40}(fail|not found|error|exit)",
                r"job supervisor.{0,40}(fail|die|fail|not)",
                at=POSSIBLE,
            ),
            says(
                r"modulenotfounderror",
                r"no module named",
                at=POSSIBLE,
                unless=r"ray\.|deepspeed|torch|flash_attn|apex|nccl|_ext\b",
            ),
            says(r"(no such file|can't open file|cannot find).{0,60}\.py\b", at=POSSIBLE),
        ),
    ),
    Rule(
        name="gcs_unreachable",
        kind=Kind.RAY_CONTROL_PLANE,
        owner="platform",
        cause="Ray's control service on the head was unreachable or restarted; the workers only followed",
        do="give the head memory and fault tolerance, and workers a reconnect time longer than the head's recovery",
        retry="may help",
        scope="node",
        signals=(
            says(
                r"(failed|unable|cannot|could not|can't) (to )?(connect|reach|register|get|check).{0,40}\bgcs\b",
                r"gcs may have been killed",
                r"lost connection to (the )?gcs",
                r"gcs.{0,30}(is )?(unreachable|unavailable|not reachable|not respond\w*|disconnect\w*)",
                at=LIKELY,
            ),
            says(
                r"gcs_?server\w* .{0,60}(killed|crash|exited|died|restart|oom|terminated|check failed)",
                r"gcs client.{0,60}(fail|error|unavailable)",
                at=LIKELY,
            ),
            told(
                r"\bhead( node| pod)?\b.{0,60}(restart|oomkilled|crash|killed|evicted|died|unreachable"
                r"|rescheduled|overload|lost|deleted|not ready)",
                at=LIKELY,
                unless=r"autoscaler|image",
            ),
            says(
                r"could not connect to (the )?ray (head|cluster|instance)",
                r"failed to connect to (the )?ray",
                r"ray client.{0,60}(connection|disconnected).{0,40}(fail|lost|timeout)",
                at=POSSIBLE,
            ),
            says(
                r"(failed|unable) to connect to .{0,60}:6379",
                r"connection (refused|timed out).{0,60}:6379",
                r":6379.{0,60}(refused|timed out|unavailable|unreachable)",
                at=POSSIBLE,
            ),
            says(
                r"redis.{0,80}(fail|error|refused|unavailable|timeout|lost|wrongpass|noauth)",
                at=POSSIBLE,
                unless=r"lettuce",
            ),
            says(
                r"marked dead because the detector has missed",
                r"missed too many heartbeats",
                at=POSSIBLE,
            ),
            says(
                r"raylet.{0,60}(terminated|died|killed|crash|exited).{0,60}(gcs|head|unexpected|agent)",
                r"(dashboard|runtime[_ ]env)[_ ]agent.{0,60}(fail|exit|dead|crash|unreachable|not start)",
                at=POSSIBLE,
                unless=r"exit code 0",
            ),
        ),
        unless=(says(r"version mismatch: the cluster", at=HINT),),
    ),
)

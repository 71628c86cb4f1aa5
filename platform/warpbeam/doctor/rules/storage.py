"""Disks, the object store and the hubs."""

from __future__ import annotations

from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import Rule
from warpbeam.doctor.signal import LIKELY, POSSIBLE, SURE, says, told

RULES = (
    Rule(
        name="disk_full",
        kind=Kind.DISK_FULL,
        owner="platform",
        cause="a disk or quota of the node is full",
        do="free or enlarge it; rotate logs, move spill and checkpoints elsewhere; then start again",
        scope="node",
        signals=(
            says(
                r"no space left on device",
                r"errno 28\b",
                r"enospc",
                at=LIKELY,
                unless=r"/dev/shm|\bshm\b|nccl|shared memory",
            ),
            says(r"disk quota exceeded", r"edquot", r"errno 122\b", at=SURE),
            says(
                r"is over 9\d(\.\d+)?% full",
                r"outofdiskerror",
                r"local disk is full",
                r"disk usage .{0,40}(exceed|9\d ?%|100 ?%)",
                r"use% 100",
                r"\b100% /",
                at=SURE,
                unless=r"/dev/shm",
            ),
            told(
                r"(disk|filesystem|volume|partition|/tmp|/var|inode\w*)\b.{0,40}(is |was |were )?(full|exhausted"
                r"|filled|ran out)",
                r"filled .{0,20}(disk|volume)",
                r"out of (disk|inodes)",
                at=LIKELY,
                unless=r"shm",
            ),
            says(
                r"(ph?ytorchstreamwriter|inline_container\.cc|safetensorerror|file write|iostream)"
                r".{0,80}(fail\w* writing|unexpected pos|failed finding|write failed|error 28)",
                at=POSSIBLE,
                unless=r"reading|central directory",
            ),
        ),
    ),
    Rule(
        name="ephemeral_storage_evicted",
        kind=Kind.DISK_FULL,
        owner="platform",
        cause="the pod was evicted because its ephemeral storage, or the node's disk, was full",
        do="an ephemeral-storage limit that fits, or a volume for what the job writes",
        scope="pod",
        signals=(
            says(
                r"low on resource: ephemeral-storage",
                r"ephemeral[- ](local )?storage.{0,60}(exceed|limit|evict|full|usage)",
                r"disk ?pressure",
                at=SURE,
            ),
            says(r"usage of emptydir volume.{0,80}exceeds", at=SURE, unless=r"memory"),
        ),
    ),
    Rule(
        name="hub_unreachable",
        kind=Kind.HUB_OFFLINE,
        owner="ml",
        cause="a model or data set is looked up on the hub, which cannot be reached, and the cache does not hold it",
        do="fetch it once to storage and name that path in the job",
        scope="rank",
        signals=(
            says(
                r"offline mode is enabled",
                r"offlinemodeisenabled",
                r"localentrynotfound",
                r"outgoing traffic has been disabled",
                r"hf_(hub|datasets)_offline",
                r"transformers_offline",
                at=LIKELY,
            ),
            says(
                r"(couldn'?t|could not|can'?t|cannot|failed to|unable to|error) (connect to|reach|load|find"
                r"|download|resolve|retriev\w+|access).{0,60}(huggingface|hugging face|\bhub\b|hf\.co"
                r"|cached files|modelscope)",
                at=SURE,
            ),
            says(
                r"(host=|://|to |resolve |reach )'?(\w+\.)*(huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn)"
                r".{0,120}(max retries|timed? ?out|refused|failed|unreachable|resolution|error|not known)",
                r"(max retries|timed? ?out|failed|name resolution|error).{0,120}(huggingface\.co|hf\.co"
                r"|hf-mirror\.com|modelscope\.cn)",
                at=SURE,
            ),
            says(
                r"(gatedrepoerror|repositorynotfounderror|hfhubhttperror|too many requests.{0,60}(huggingface"
                r"|hf\.co))",
                at=LIKELY,
            ),
            says(
                r"cache directory for .{0,80}doesn'?t exist",
                r"(not|isn'?t|is no) .{0,30}(cached|local) (folder|files|copy|path)",
                r"(model|data ?set|tokenizer|repo).{0,40}not (in|found in) (the )?(local )?cache",
                at=POSSIBLE,
            ),
            told(r"(air.?gapped|no internet|without (network|internet)|no (outbound|egress)).{0,80}", at=POSSIBLE),
        ),
    ),
    Rule(
        name="store_refuses",
        kind=Kind.OBJECT_STORE,
        owner="platform",
        cause="the object store refuses the request: credentials, rights, region or clock",
        do="try the same request with the pod's own credentials; correct rights or region in the pool file",
        scope="rank",
        signals=(
            says(
                r"unable to locate credentials",
                r"nocredentials",
                r"partialcredentials",
                r"expiredtoken",
                r"invalidaccesskeyid",
                r"signaturedoesnotmatch",
                r"requesttimetooskewed",
                r"authorizationheadermalformed",
                r"permanentredirect",
                r"nosuchbucket",
                r"invalidbucketname",
                r"could not load credentials",
                r"credentials? (provider )?.{0,30}(expired|not found|timeout|fail)",
                at=SURE,
                unless=r"image|registry|pull",
            ),
            says(
                r"an error occurred \(\w+\) when calling the \w+ operation",
                r"botocore\.exceptions",
                r"\bs3\w*\b.{0,80}(forbidden|access ?denied|(error|status|code|http)\D{0,10}(403|301|400)\b)",
                r"permissionerror: (forbidden|access denied)",
                r"aws error access_denied",
                r"\b(imds|instance metadata|sts|irsa|assumerole\w*)\b.{0,80}(fail|timeout|denied|unavailable"
                r"|error|timed out)",
                at=LIKELY,
            ),
        ),
    ),
    Rule(
        name="store_fails",
        kind=Kind.OBJECT_STORE,
        owner="platform",
        cause="the object store or its client failed: throttled, timed out, or a client's defect",
        do="fewer requests at once, longer timeouts, the client's newest patch; start again",
        retry="may help",
        scope="rank",
        signals=(
            says(
                r"s3torchconnector|s3exception|aws_?crt|google\.api_core\.exceptions|azure\.core\.exceptions",
                at=LIKELY,
                unless=r"\bno module|import",
            ),
            says(
                r"aws error [a-z_]+",
                r"curlcode: ?\d+",
                r"awserror",
                r"aws_error",
                r"pyarrow.{0,20}s3",
                at=LIKELY,
                unless=r"access_denied|retried_\w*errors|retry_\w*errors|', 'aws error",
            ),
            says(
                r"slow ?down\b.{0,60}(503|rate|reduce)",
                r"503.{0,30}slow ?down",
                r"please reduce your request rate",
                at=LIKELY,
                unless=r"clock|thermal|gpu|cpu",
            ),
            says(
                r"(endpointconnectionerror|could not connect to the endpoint|connecttimeouterror|readtimeouterror"
                r"|incompleteread|responsestreamingerror).{0,120}",
                at=LIKELY,
                unless=r"huggingface|hf\.co",
            ),
            told(
                r"\b(s3|gcs bucket|gs://|minio|ceph|blob|object store|bucket)\b.{0,80}(timed? ?out|timeout|5\d\d"
                r"|fail|error|stall|reset|unavailable|refused|corrupt|slow)",
                at=POSSIBLE,
                unless=r"plasma|object store is using|object_store_memory|spill",
            ),
        ),
    ),
)

"""The vocabulary of findings. Each kind's page in infra/runbooks/ is written from here and from the rules.

The order matters: where two causes are seen and no clock tells which came first, the one that stands further up is
taken, because it explains the other (a job that was never placed has no network yet; a dead GPU runs out of nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """One mechanism of failure."""

    IMAGE_PULL = "image_pull"
    HALF_STARTED_GANG = "half_started_gang"
    AUTOSCALER = "autoscaler"
    INFEASIBLE_PLACEMENT = "infeasible_placement"
    LAUNCHER_NO_EXIT = "launcher_no_exit"
    GPU_HARDWARE = "gpu_hardware"
    DRIVER_MISMATCH = "driver_mismatch"
    SHM_TOO_SMALL = "shm_too_small"
    DISK_FULL = "disk_full"
    HOST_OOM = "host_oom"
    RAY_VERSION = "ray_version"
    RAY_JOB_SUBMIT = "ray_job_submit"
    RAY_CONTROL_PLANE = "ray_control_plane"
    VERSION_MISMATCH = "version_mismatch"
    GPUDIRECT_P2P_PCIE = "gpudirect_p2p_pcie"
    IB_ROCE = "ib_roce"
    HUB_OFFLINE = "hub_offline"
    OBJECT_STORE = "object_store"
    PORT_COLLISION = "port_collision"
    RENDEZVOUS_DNS = "rendezvous_dns"
    RANK_UNREACHABLE = "rank_unreachable"
    DEEPSPEED_BUILD = "deepspeed_build"
    CHECKPOINT_FILE = "checkpoint_file"
    CHECKPOINT_TOPOLOGY = "checkpoint_topology"
    BATCH_CONFIG = "batch_config"
    DEEPSPEED_CONFIG = "deepspeed_config"
    TOKENIZER_VOCAB = "tokenizer_vocab"
    GPU_OOM_ONE_RANK = "gpu_oom_one_rank"
    LOSS_SCALE = "loss_scale"
    NCCL_BUG = "nccl_bug"
    DATA_LOADER_HANG = "data_loader_hang"
    DATA_EXHAUSTION = "data_exhaustion"
    COLLECTIVE_DIVERGENCE = "collective_divergence"
    SLOW_OR_ABSENT_RANK = "slow_or_absent_rank"
    STRAGGLER = "straggler"


@dataclass(frozen=True)
class Page:
    """What a person should know of one kind: its runbook's text.

    Args:
        meaning: the mechanism.
        confirm: how to see it by hand.
        fix: what ends it for good.
    """

    meaning: str
    confirm: str
    fix: str


PAGES: dict[Kind, Page] = {
    Kind.IMAGE_PULL: Page(
        "The node cannot fetch the container's image: the name or tag does not exist, or the registry refuses.",
        (
            "`kubectl describe pod NAME`: the events name the image and the registry's answer; then `crane "
            "manifest IMAGE` with the pod's pull secret."
        ),
        (
            "Correct the tag, better: pin a digest; give the namespace's service account the pull secret; "
            "mirror what a public registry limits."
        ),
    ),
    Kind.HALF_STARTED_GANG: Page(
        (
            "Some pods of the job run and hold their GPUs, the others cannot be created or placed. The "
            "running ones wait, and may block each other's jobs for ever."
        ),
        (
            "`kubectl get pods` of the job: Running beside Pending, or fewer pods than the job has; `kubectl "
            "describe` of a Pending one; `kubectl get resourcequota`."
        ),
        (
            "Start all or nothing: a gang scheduler or Kueue, with a minimum equal to the whole job; raise "
            "the quota, or ask for less."
        ),
    ),
    Kind.AUTOSCALER: Page(
        "The Ray autoscaler does not add the workers it should, takes away some in use, or does not run at all.",
        (
            "`kubectl logs HEAD -c autoscaler` and `ray status`: the demand, the groups it knows with their "
            "resources, its last error."
        ),
        (
            "State CPU and GPU limits (or `num-cpus`, `num-gpus`) in every group; a maximum that holds the "
            "job; the operator's rights; an idle time longer than the longest pause."
        ),
    ),
    Kind.INFEASIBLE_PLACEMENT: Page(
        (
            "The request can never be satisfied: more than any node, group limit or quota offers, or a "
            "selector that no node meets."
        ),
        (
            "Compare each bundle or pod with the largest single node, never with the total; `kubectl describe "
            "pod`: taints, selectors; the group's maximum."
        ),
        "Ask for bundles that fit a node, or raise the group's maximum; a toleration or label that matches.",
    ),
    Kind.LAUNCHER_NO_EXIT: Page(
        "A rank has died, but its launcher does not end the others: the job looks alive and holds its GPUs.",
        (
            "`ps` on the nodes: ranks that still run, or are defunct, beside one that is gone; the launcher's "
            "log after the first exit code."
        ),
        (
            "A launcher that ends all ranks when one dies (torchrun, `mpirun --kill-on-bad-exit`, `srun "
            "--kill-on-bad-exit=1`); a watchdog and a deadline on the job."
        ),
    ),
    Kind.GPU_HARDWARE: Page(
        "A GPU, its memory, NVLink or the fabric manager of the node is faulty.",
        (
            "`dmesg | grep -i xid`, `nvidia-smi -q -d ECC,ROW_REMAPPER`, `systemctl status "
            "nvidia-fabricmanager`, `dcgmi diag -r 3`; the same node in every failed attempt."
        ),
        "Take the node out, reset or reseat the GPU, replace it when that returns. A retry elsewhere works at once.",
    ),
    Kind.DRIVER_MISMATCH: Page(
        "Driver, kernel module, user libraries and the CUDA of the program do not belong together on this node.",
        (
            "`nvidia-smi` on the node and in the container; `cat /proc/driver/nvidia/version` beside the "
            "packages' versions and `torch.version.cuda`."
        ),
        "Reboot or reload the module after an upgrade, and hold the packages; an image whose CUDA the driver supports.",
    ),
    Kind.SHM_TOO_SMALL: Page(
        "The container's /dev/shm is smaller than what NCCL or the data loaders put there.",
        "`df -h /dev/shm` in the worker: 64M is the runtime's default.",
        "A memory-backed volume at /dev/shm, sized for all local ranks and loader workers (`docker run --shm-size`).",
    ),
    Kind.DISK_FULL: Page(
        "A disk, a quota or the pod's ephemeral storage is full.",
        (
            "`df -h` and `df -i` on the node, the largest files below /tmp and the checkpoint folder; the "
            "pod's eviction message."
        ),
        "Free or enlarge it; rotate logs; spill and checkpoint elsewhere; an ephemeral-storage limit that fits.",
    ),
    Kind.HOST_OOM: Page(
        "Host memory ran out: the kernel, the cgroup or Ray killed a process, without a traceback.",
        "The pod's last state (OOMKilled, 137), `dmesg | grep -i 'killed process'`, the cgroup's memory.events.",
        "A larger memory limit, less offload, fewer loader workers, or data that is read and not held.",
    ),
    Kind.RAY_VERSION: Page(
        "Ray or Python differ between the client, the head and the workers.",
        "`ray --version` and `python --version` in the head, in a worker and where the job is submitted.",
        "One image for head and workers; submit over the Jobs API, which needs no equal Python.",
    ),
    Kind.RAY_JOB_SUBMIT: Page(
        "The job's package or runtime environment cannot be made or delivered.",
        "The submission's output, and `runtime_env_setup-*.log` in the head's session folder.",
        "Leave data and .git out of the working directory; dependencies belong into the image.",
    ),
    Kind.RAY_CONTROL_PLANE: Page(
        "The head or its GCS is unreachable, overloaded or was restarted; the workers only follow.",
        "`kubectl get pods`: the head's restarts and last state; gcs_server.out; `ray health-check`.",
        (
            "Memory and CPU for the head, GCS fault tolerance, and a reconnect time on workers that is longer "
            "than the head's recovery."
        ),
    ),
    Kind.VERSION_MISMATCH: Page(
        "Ranks or nodes run different versions of the communication stack: NCCL, a network plugin, libfabric, MPI.",
        "Compare the `NCCL version` and `NET/Plugin` lines of all ranks.",
        "The same image by digest on every node; no library mounted from the host.",
    ),
    Kind.GPUDIRECT_P2P_PCIE: Page(
        (
            "Transfers between GPUs, or between GPU and NIC, are blocked, redirected or corrupted on the PCIe "
            "path: ACS, IOMMU, a missing peer-memory module."
        ),
        (
            "`cat /proc/cmdline` (iommu), `lspci -vvv | grep ACSCtl`, `lsmod | grep peermem`, `nvidia-smi "
            "topo -p2p r`; does it run with NCCL_P2P_DISABLE=1 or NCCL_NET_GDR_LEVEL=0?"
        ),
        "Switch ACS off and the IOMMU off or to passthrough; load nvidia-peermem.",
    ),
    Kind.IB_ROCE: Page(
        "InfiniBand or RoCE is set up wrongly, or a link failed: GID index, HCA choice, locked memory, MTU, cable.",
        (
            "`ibstat`, `ibv_devinfo -v` and `show_gids` on both nodes, compared; `ulimit -l` in the worker; "
            "`ib_write_bw` between the pair."
        ),
        (
            "The routable GID (often index 3) and the right HCAs in the pool's env; unlimited memlock; "
            "equal MTU; the link mended."
        ),
    ),
    Kind.HUB_OFFLINE: Page(
        "A model or data set is looked up on a hub that this machine cannot reach, or may not.",
        "Try the same look-up in the worker with HF_HUB_OFFLINE=1; list the cache folder.",
        "Fetch it once to storage and name that path; a mirror; a token where the hub asks for one.",
    ),
    Kind.OBJECT_STORE: Page(
        (
            "The object store or its client refuses or fails: credentials, region, endpoint, clock, limits, a "
            "client's defect."
        ),
        (
            "The same request with the pod's own credentials: `aws s3 ls`, `aws sts get-caller-identity`; the "
            "error's code names the reason."
        ),
        "Rights and endpoint in the pool file; fewer requests at once; a client version without the defect.",
    ),
    Kind.PORT_COLLISION: Page(
        "A port that the job needs is taken by another process.",
        "`ss -ltnp | grep PORT` on the node: often a rank that an earlier attempt left behind.",
        "Let the launcher choose a free port; end what was left; no fixed ports on a shared host network.",
    ),
    Kind.RENDEZVOUS_DNS: Page(
        "The head's or rank 0's name cannot be resolved (yet), so the ranks never meet.",
        (
            "`getent hosts NAME` in a worker; the headless service, its selector and "
            "publishNotReadyAddresses; the cluster's domain."
        ),
        "Wait for the name before starting; publish addresses before readiness; the right cluster domain.",
    ),
    Kind.RANK_UNREACHABLE: Page(
        "Ranks cannot open connections to each other: wrong interface, firewall, loopback address or missing route.",
        (
            "The `Bootstrap : Using` line of each rank; `ip route get PEER`; `nc -vz PEER PORT` in both "
            "directions, from inside the workers."
        ),
        (
            "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME set for the workers; ports open between nodes; no "
            "127.0.1.1 for the own name."
        ),
    ),
    Kind.DEEPSPEED_BUILD: Page(
        "A DeepSpeed or torch extension cannot be built or loaded: CUDA toolkit, compiler, ninja, a stale lock.",
        "`ds_report`; `nvcc --version` beside `torch.version.cuda`; a `lock` file in the torch_extensions folder.",
        "Build the ops into the image, with the toolkit that torch was built for; a node-local TORCH_EXTENSIONS_DIR.",
    ),
    Kind.CHECKPOINT_FILE: Page(
        "A weights or checkpoint file is damaged, cut short, or a placeholder of git-lfs.",
        "Its size and first bytes (`head -c 200 FILE`), compared with the source's checksum.",
        "Fetch it again, with git-lfs where the source uses it; write checkpoints whole or not at all.",
    ),
    Kind.CHECKPOINT_TOPOLOGY: Page(
        "A checkpoint of one world size or parallel layout is loaded into another.",
        "Count the shards in the folder and compare with the ranks; the layout in its metadata.",
        "Resume with the same layout, or convert to a universal or consolidated checkpoint first.",
    ),
    Kind.BATCH_CONFIG: Page(
        "Batch, accumulation, group and world size do not multiply or divide.",
        (
            "Global batch = micro-batch x accumulation x data-parallel ranks, with the world size that the "
            "launcher really made."
        ),
        "Take one of the legal values; `warpbeam plan` prints the nearest.",
    ),
    Kind.DEEPSPEED_CONFIG: Page(
        "A DeepSpeed setting, or its combination with the framework or the model code, is wrong.",
        "The configuration that DeepSpeed prints at start, beside the framework's arguments.",
        (
            "Follow the message: one owner for each value (`auto` in the file), and no code that touches "
            "parameters while ZeRO-3 has them apart."
        ),
    ),
    Kind.TOKENIZER_VOCAB: Page(
        "A token or label id is outside the embedding or the classes.",
        (
            "`len(tokenizer)` beside the embedding's rows; the largest id of a batch; once with "
            "CUDA_LAUNCH_BLOCKING=1 or on the CPU."
        ),
        "Resize the embedding, or take the tokenizer that belongs to the weights.",
    ),
    Kind.GPU_OOM_ONE_RANK: Page(
        "A rank runs out of GPU memory; the others only time out.",
        "The rank's own traceback; `nvidia-smi` for other processes on that GPU; the length of its batch.",
        (
            "Smaller micro-batch, checkpointed activations, more sharding; even out the longest batches; end "
            "strangers on the GPU."
        ),
    ),
    Kind.LOSS_SCALE: Page(
        "fp16 overflows at every step, until the loss scale is at its minimum; or the loss is not a number.",
        "The scale's course in the log; the first step whose loss or gradient is not finite, and its sample ids.",
        "bf16 where the GPU has it; else a lower learning rate, a warm-up, a look at the data of that step.",
    ),
    Kind.NCCL_BUG: Page(
        "A defect of the collective library itself, mended in another version.",
        "The version that the log prints, in the library's release notes and issues; does nccl-tests fail alike?",
        "The version that mends it, in the image; until then the switch that avoids the faulty path.",
    ),
    Kind.DATA_LOADER_HANG: Page(
        "One rank's data loader stands still, and all others wait for that rank.",
        "Stacks of all ranks: one in the loader's queue, the others in a collective; stacks of its loader processes.",
        "A timeout on the loader; no fork after threads; storage that answers; fewer or no worker processes.",
    ),
    Kind.DATA_EXHAUSTION: Page(
        "Ranks have different numbers of batches: one leaves the loop, the others wait for its part.",
        "Batches per rank, counted; the ranks' last steps.",
        "Equal shares (drop the last, pad), or a join at the end of the epoch.",
    ),
    Kind.COLLECTIVE_DIVERGENCE: Page(
        "Ranks issue different collectives, or the same in another order or size.",
        (
            "Flight-recorder dumps of all ranks: the first sequence number at which they differ; "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL."
        ),
        "The same path on all ranks: no collective under a condition that only some ranks meet.",
    ),
    Kind.SLOW_OR_ABSENT_RANK: Page(
        "One rank is busy elsewhere (evaluation, tokenising, saving) or gone, while the others wait in a collective.",
        "Stacks of all ranks; the rank with the lowest sequence number, or without a dump.",
        (
            "Do long work on all ranks, before the group forms, or under a longer timeout; collectives such "
            "as a save on every rank."
        ),
    ),
    Kind.STRAGGLER: Page(
        "Everything works, but one rank, node or path sets a slower pace.",
        "Step times by rank, the bus bandwidth by pair, clocks and their throttle reasons; which transport NCCL chose.",
        "Take the slow node out; bring the fast path back (plugin, GPUDirect, link width, cooling).",
    ),
}

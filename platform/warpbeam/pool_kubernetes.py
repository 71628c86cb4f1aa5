"""The `kubernetes:` section of a pool file: what a cluster offers, so that manifests can be rendered from it.

Names are Kubernetes', KubeRay's and Kueue's own in snake_case. Sizes of pods are not here: a pod gets its share of a
node by the accelerators it holds. What contradicts itself is in `pool_kubernetes_checks`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from warpbeam import pool_kubernetes_checks as checks
from warpbeam.job import EnvName, Name, Section
from warpbeam.spec_problems import Problem

GangBy = Literal["kueue", "volcano", "yunikorn", "scheduler-plugins", "gate"]
AcceleratorResource = Literal["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"]

ObjectName = Annotated[str, AfterValidator(checks.object_name)]
LabelKey = Annotated[str, AfterValidator(checks.label_key)]
ResourceName = Annotated[str, AfterValidator(checks.resource_name)]
Labels = dict[LabelKey, Annotated[str, AfterValidator(checks.label_value)]]
Port = Annotated[int, Field(ge=1, le=65535)]

DIGEST_PLACEHOLDER: Final = "sha256:" + "0" * 64
"""What the repository's own pools write in the place of a digest; `render --check` refuses it."""


class SecretKey(Section):
    """One value of a Kubernetes Secret in the team's namespace."""

    name: ObjectName = Field(examples=["hf"], description="The Secret.")
    key: str = Field(min_length=1, examples=["token"], description="Its key.")


class Quota(Section):
    """What a team's namespace may hold at once, as a ResourceQuota."""

    accelerators: int = Field(ge=0, examples=[16], description="Of the pool's accelerator resource; 0 on a CPU pool.")
    cpus: int = Field(ge=1, examples=[512], description="Requests and limits of all pods.")
    memory_gib: int = Field(ge=1, examples=[4096], description="Requests and limits of all pods.")
    pods: int = Field(100, ge=1, description="Pods of all kinds.")


class Team(Section):
    """Where one team's jobs run. One tenant a namespace: Ray's Jobs API runs whatever it is sent."""

    namespace: Name = Field(examples=["team-support"], description="Made by the platform team; not shared by teams.")
    service_account: Name = Field("warpbeam", description="Of every pod; workload identity belongs to it.")
    service_account_annotations: dict[LabelKey, str] = Field(
        {},
        examples=['{eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/train"}'],
        description="How the cloud knows it, for workload identity.",
    )
    queue: ObjectName | None = Field(None, examples=["support"], description="Its queue, where it is not the pool's.")
    quota: Quota | None = Field(None, description="Limits of the namespace; without it only the queue limits.")
    submitters: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        examples=["[ml-support]"],
        description="Groups of people, as the cluster's login names them, who may submit.",
    )


class Node(Section):
    """What a node leaves for pods: its allocatable, less the daemon sets."""

    cpus: int = Field(ge=1, examples=[208], description="CPU cores.")
    memory_gib: int = Field(ge=2, examples=[1900], description="Memory.")


class Toleration(Section):
    """A taint that pods of this pool accept, in Kubernetes' own words."""

    key: LabelKey = Field(examples=["nvidia.com/gpu"], description="The taint's key.")
    operator: Literal["Exists", "Equal"] = Field("Exists", description="Equal compares `value`.")
    value: str | None = Field(None, examples=["present"], description="Only with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="Default: all.")
    toleration_seconds: int | None = Field(
        None, ge=0, examples=["300"], description="How long a pod stays once tainted; only with effect NoExecute."
    )

    def contradictions(self) -> list[Problem]:
        return checks.toleration(self)


class Placement(Section):
    """Onto which nodes pods may go."""

    node_selector: Labels = Field({}, examples=["{node-pool: cpu}"], description="Labels a node must have.")
    tolerations: list[Toleration] = Field([], description="Taints that are accepted.")


class Head(Placement):
    """The Ray head: GCS, dashboard and the driver. It gets no accelerator and runs no tasks."""

    cpus: int = Field(4, ge=1, description="CPU cores.")
    memory_gib: int = Field(16, ge=2, description="Memory; a head that runs out of it takes the whole attempt along.")
    scratch_gib: int = Field(20, ge=1, description="Of its disk, at the pool's `local_disk`.")


class CpuGroup(Placement):
    """Workers without accelerators, from zero: Ray's autoscaler starts them for data preparation."""

    name: Name = Field(examples=["prepare"], description="Of the worker group.")
    cpus: int = Field(ge=1, examples=[16], description="Of one worker.")
    memory_gib: int = Field(ge=2, examples=[64], description="Of one worker.")
    max: int = Field(ge=1, examples=[8], description="Workers at most.")
    idle_timeout_s: int = Field(60, ge=0, description="A worker without work is given back after so long.")


class Topology(Section):
    """Which nodes are close to each other."""

    key: LabelKey = Field(
        examples=["topology.kubernetes.io/rack"],
        description="The node label of a rack or block. Kueue wants it in a Topology that the flavor names.",
    )
    required: bool = Field(False, description="All ranks in one of them, or none; false: where there is room.")


class Fabric(Section):
    """The fast network between nodes."""

    resources: dict[ResourceName, Annotated[int, Field(ge=1)]] = Field(
        {}, examples=["{rdma/hca_shared: 8}"], description="Of a whole node; a pod gets its share, at least one."
    )
    networks: list[ObjectName] = Field([], examples=['["rail-0"]'], description="Secondary networks (Multus).")
    env: dict[EnvName, str] = Field({}, examples=["{NCCL_IB_HCA: mlx5}"], description="NCCL's settings for it.")
    needs_privileged: bool = Field(
        False, description="Pods ask for IPC_LOCK, which Pod Security `restricted` refuses: a privileged namespace."
    )


class Credentials(Section):
    """How pods reach the store."""

    secret: ObjectName | None = Field(
        None, examples=["s3"], description="A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    )
    workload_identity: bool = Field(False, description="By the service account, no secret.")

    def contradictions(self) -> list[Problem]:
        return checks.credentials(self)


class Deadlines(Section):
    """How long anything may take before it is given back."""

    pre_running_s: int = Field(1800, ge=1, description="From creation to a running job; then all is given back.")
    active_s: int = Field(1_209_600, ge=1, description="Of one attempt of the RayJob; it is not tried again.")
    save_grace_s: int = Field(120, ge=1, description="A pod that must go lives so long, for the emergency save.")
    lost_node_s: int = Field(20, ge=0, description="A pod on a node that is NotReady is given up after so long.")
    whole_again_s: int = Field(
        300, ge=1, description="Ranks may be missing for so long after a machine was lost; then a new cluster is tried."
    )


class Peer(Section):
    """Who may be at the other end of a connection."""

    namespace: Name | None = Field(None, examples=["kuberay-system"], description="Pods of this namespace.")
    labels: Labels = Field({}, examples=["{k8s-app: kube-dns}"], description="Only those of its pods.")
    cidr: str | None = Field(None, examples=["10.0.0.1/32"], description="Or addresses outside the cluster.")
    ports: list[Port] = Field([], examples=["[443]"], description="TCP; none: all ports.")

    def contradictions(self) -> list[Problem]:
        return checks.peer(self)


class Network(Section):
    """What pods of a run may reach and who may reach them, besides each other."""

    operator: Peer = Field(
        Peer(namespace="kuberay-system"), description="The KubeRay operator: it asks the head about the job."
    )
    dns: Peer = Field(
        Peer(namespace="kube-system", labels={"k8s-app": "kube-dns"}), description="Port 53 is understood."
    )
    api_server: list[Peer] = Field(
        min_length=1,
        examples=['[{cidr: "10.0.0.1/32", ports: [6443]}]'],
        description="As pods see it behind its service.",
    )
    store: list[Peer] = Field(
        min_length=1, examples=["[{namespace: storage, ports: [9000]}]"], description="Where the pool's storage is."
    )
    monitoring: Peer | None = Field(None, description="Who reads metrics (Prometheus).")
    clients: list[Peer] = Field([], description="Who may ask a served model.")
    hub: list[Peer] = Field([], description="Where hf:// models come from: a mirror, or the internet's addresses.")


class Redis(Section):
    """Where the head of a serving cluster keeps its state, so that it may be replaced."""

    address: str = Field(min_length=1, examples=['"redis:6379"'], description="HOST:PORT, or redis://HOST:PORT.")
    password: SecretKey | None = Field(None, description="Where there is one.")
    peer: Peer | None = Field(None, description="Where Redis is, for the NetworkPolicy.")


class Serve(Section):
    """Served models: one replica a pod."""

    replicas: int = Field(1, ge=1, description="Pods that serve.")
    accelerators_per_replica: int = Field(1, ge=0, description="0 only on a CPU pool.")
    token: SecretKey = Field(examples=["{name: serve, key: token}"], description="What clients must send.")
    redis: Redis | None = Field(None, description="Without it a lost head takes the endpoint along.")


class Kubernetes(Section):
    """A Kubernetes cluster with the KubeRay operator."""

    teams: dict[Name, Team] = Field(
        min_length=1, examples=["{support: {namespace: team-support}}"], description="By the job's `team:`."
    )
    accelerator_resource: AcceleratorResource | None = Field(
        None, examples=["nvidia.com/gpu"], description="What a device plugin calls it; none on a CPU pool."
    )
    node: Node = Field(examples=["{cpus: 208, memory_gib: 1900}"], description="What a node leaves for pods.")
    node_selector: Labels = Field({}, examples=["{gpu: h100}"], description="Labels an accelerator's node must have.")
    tolerations: list[Toleration] = Field([], description="Taints of those nodes.")
    topology: Topology | None = Field(None, description="Ranks close to each other.")
    num_of_hosts: int = Field(1, ge=1, description="Nodes of one TPU slice, which live and die together.")
    head: Head = Field(Head(), description="The Ray head's share.")
    cpu_groups: list[CpuGroup] = Field([], description="For data preparation, from zero.")
    priority_class: ObjectName | None = Field(None, examples=["training"], description="PriorityClass of pods.")
    gang: GangBy = Field(
        "gate",
        description="What keeps a job from starting in half; gate: the RayJob is made suspended and is to be released "
        "when all of it fits.",
    )
    queue: ObjectName | None = Field(None, examples=["training"], description="Of kueue, volcano or yunikorn.")
    queue_priority: ObjectName | None = Field(None, examples=["high"], description="Kueue's WorkloadPriorityClass.")
    elastic_jobs_gate: bool = Field(False, description="Kueue runs with ElasticJobsViaWorkloadSlices.")
    fabric: Fabric = Field(Fabric(), description="The fast network between nodes.")
    shm_gib: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", examples=[64], description="/dev/shm of an accelerator pod; auto: Ray's object store and 1 GiB a rank."
    )
    scratch_gib: int = Field(50, ge=1, description="Of each worker's disk, at the pool's `local_disk`.")
    credentials: Credentials = Field(examples=["{secret: s3}"], description="For the pool's store.")
    secrets: dict[str, SecretKey] = Field(
        {}, examples=["{hf-token: {name: hf, key: token}}"], description="Where each of the pool's `secrets` is here."
    )
    deadlines: Deadlines = Field(Deadlines(), description="How long anything may take.")
    retries: int = Field(1, ge=0, le=10, description="New RayClusters after a lost head or cluster, for one RayJob.")
    token_auth: bool = Field(True, description="Ray's own token on dashboard and Jobs API; needs Ray 2.52.")
    prometheus: bool = Field(True, description="Annotate pods for Prometheus.")
    network: Network | None = Field(None, description="Without it no NetworkPolicy is rendered.")
    serve: Serve | None = Field(None, description="What a served model gets; without it none is rendered.")
    run_as_user: int = Field(1000, ge=1, description="The image's user; never root.")

    def contradictions(self) -> list[Problem]:
        return checks.kubernetes(self)

    def team_queue(self, team: Team) -> str | None:
        """The queue of a team's jobs."""
        return team.queue or self.queue

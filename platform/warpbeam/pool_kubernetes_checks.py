"""What the types of a pool's `kubernetes:` section cannot say: how names must look, and what does not go together.

Rules that depend on a job are in `kube.operator_rules`; here is what the pool file alone can answer.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from packaging.version import InvalidVersion, Version

from warpbeam.spec_problems import KeyPath, Problem, refuse, show

if TYPE_CHECKING:
    from warpbeam.pool import Pool
    from warpbeam.pool_kubernetes import Credentials, Kubernetes, Peer, Toleration

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}")
WITH_QUEUES: Final = ("kueue", "volcano", "yunikorn")
RESERVED_GROUPS: Final = ("head", "train", "train-rest", "serve")
KUEUE_POD_SETS: Final = 8
"""A Workload of Kueue 0.17 holds so many: head, submitter and the worker groups."""
MOST_CPU_GROUPS: Final = KUEUE_POD_SETS - 3
TOKEN_AUTH_SINCE: Final = Version("2.52.0")
CONTRACT: Final = ("python", "ray", "torch", "deepspeed", "warpbeam")
"""What an image must say it holds; `cuda` besides, where there are NVIDIA GPUs."""


def object_name(value: str) -> str:
    """The name of a Kubernetes object."""
    if len(value) > 253 or not SUBDOMAIN.fullmatch(value):
        refuse(Problem((), f"is no name of a Kubernetes object, it is {show(value)}", "use a-z, 0-9, - and ."))
    return value


def label_key(value: str) -> str:
    """`name` or `prefix/name`."""
    prefix, slash, name = value.rpartition("/")
    if (slash and not SUBDOMAIN.fullmatch(prefix)) or len(name) > 63 or not QUALIFIED.fullmatch(name):
        refuse(
            Problem(
                (), f"is no label's or annotation's key, it is {show(value)}", "write for example `example.com/rack`"
            )
        )
    return value


def label_value(value: str) -> str:
    """The value of a label; may be empty."""
    if len(value) > 63 or (value and not QUALIFIED.fullmatch(value)):
        refuse(Problem((), f"is no label's value, it is {show(value)}", "use at most 63 of A-Z, a-z, 0-9, -, _ and ."))
    return value


def resource_name(value: str) -> str:
    """An extended resource, `vendor/name`."""
    if "/" not in value:
        refuse(Problem((), f"is no extended resource, it is {show(value)}", "write for example `rdma/hca_shared`"))
    return label_key(value)


# ---- sections


def toleration(section: Toleration) -> list[Problem]:
    found: list[Problem] = []
    if section.operator == "Exists" and section.value is not None:
        found.append(
            Problem(("value",), "has no meaning with operator Exists", "leave it out, or write `operator: Equal`")
        )
    if section.toleration_seconds is not None and section.effect != "NoExecute":
        found.append(Problem(("toleration_seconds",), "needs effect NoExecute", "write `effect: NoExecute`"))
    return found


def credentials(section: Credentials) -> list[Problem]:
    if (section.secret is None) == (not section.workload_identity):
        return [Problem((), "needs either `secret` or `workload_identity: true`", "write for example `{secret: s3}`")]
    return []


def peer(section: Peer) -> list[Problem]:
    if (section.namespace is None) == (section.cidr is None):
        return [Problem((), "needs either `namespace` or `cidr`", "write for example `{namespace: kube-system}`")]
    found: list[Problem] = []
    if section.labels and section.namespace is None:
        found.append(Problem(("labels",), "go with `namespace`", "leave them out"))
    if section.cidr is not None:
        try:
            ipaddress.ip_network(section.cidr)
        except ValueError:
            found.append(
                Problem(("cidr",), f"is no network, it is {show(section.cidr)}", "write for example `10.0.0.0/8`")
            )
    return found


def kubernetes(section: Kubernetes) -> list[Problem]:
    return [*_gang(section), *_groups(section), *_sizes(section), *_teams(section)]


def _gang(section: Kubernetes) -> Iterator[Problem]:
    if section.gang not in WITH_QUEUES:
        asked: list[KeyPath] = [("queue",)] if section.queue else []
        asked += [("teams", name, "queue") for name, team in section.teams.items() if team.queue]
        for key in asked:
            yield Problem(key, f"has no meaning with gang {section.gang}", "leave it out, or write `gang: kueue`")
    elif section.queue is None:
        for name, team in section.teams.items():
            if team.queue is None:
                wrong = f"has no queue, and gang {section.gang} needs one"
                yield Problem(("teams", name), wrong, "write `queue:` there, or once for the pool")
    if section.queue_priority and section.gang != "kueue":
        yield Problem(("queue_priority",), "is Kueue's", "write `priority_class` instead, or `gang: kueue`")
    if section.elastic_jobs_gate and section.gang != "kueue":
        yield Problem(("elastic_jobs_gate",), "is a gate of Kueue", "leave it out, or write `gang: kueue`")


def _groups(section: Kubernetes) -> Iterator[Problem]:
    names = [group.name for group in section.cpu_groups]
    for i, name in enumerate(names):
        if name in RESERVED_GROUPS:
            yield Problem(("cpu_groups", i, "name"), f"is taken: {show(name)}", "write for example `prepare`")
        elif name in names[:i]:
            yield Problem(("cpu_groups", i, "name"), f"stands there twice: {show(name)}", "write another")
    if section.gang != "kueue" or not names:
        return
    if not section.elastic_jobs_gate:
        why = "need Ray's autoscaler, which Kueue refuses without its gate ElasticJobsViaWorkloadSlices"
        yield Problem(("cpu_groups",), why, "leave them out, or write `elastic_jobs_gate: true` where the gate is on")
    elif len(names) > MOST_CPU_GROUPS:
        why = f"are {len(names)}: a Workload of Kueue holds head, submitter and {KUEUE_POD_SETS - 2} worker groups"
        yield Problem(("cpu_groups",), why, f"write {MOST_CPU_GROUPS} or fewer, beside the training group")


def _sizes(section: Kubernetes) -> Iterator[Problem]:
    node = section.node
    if section.shm_gib != "auto" and section.shm_gib >= node.memory_gib:
        wrong = f"is {section.shm_gib}, and a node has {node.memory_gib} GiB; what lies there counts as memory"
        yield Problem(("shm_gib",), wrong, f"write {max(1, node.memory_gib // 2)} or less, or `auto`")
    if section.num_of_hosts > 1 and section.accelerator_resource != "google.com/tpu":
        yield Problem(("num_of_hosts",), "is for slices of google.com/tpu", "leave it out")


def _teams(section: Kubernetes) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name, team in section.teams.items():
        if team.namespace in seen:
            wrong = f"is also {seen[team.namespace]}'s: whoever reaches a Ray cluster runs code in it"
            yield Problem(("teams", name, "namespace"), wrong, f"write for example `team-{name}`")
        seen.setdefault(team.namespace, name)
        if team.service_account_annotations and not section.credentials.workload_identity:
            yield Problem(
                ("teams", name, "service_account_annotations"),
                "are for workload identity, and the pool's credentials are a secret",
                "leave them out, or write `credentials: {workload_identity: true}`",
            )


# ---- the section within its pool


def pool(whole: Pool) -> list[Problem]:
    """What the `kubernetes:` section and the rest of the pool say differently. Keys are the pool's."""
    section = whole.kubernetes
    if section is None:
        return []
    return [*_accelerators(whole, section), *_store(whole), *_image(whole, section), *_names(whole, section)]


def _accelerators(whole: Pool, section: Kubernetes) -> Iterator[Problem]:
    key: KeyPath = ("kubernetes", "accelerator_resource")
    if whole.is_cpu and section.accelerator_resource:
        yield Problem(key, "has no meaning on a CPU pool", "leave it out")
    if not whole.is_cpu and section.accelerator_resource is None:
        yield Problem(key, "is missing", "write for example `accelerator_resource: nvidia.com/gpu`")
    for name, team in section.teams.items():
        if whole.is_cpu and team.quota and team.quota.accelerators:
            yield Problem(("kubernetes", "teams", name, "quota", "accelerators"), "must be 0 on a CPU pool", "write 0")
    needed = math.ceil(whole.cpus_per_worker * (whole.max_ranks // whole.nodes))
    if section.node.cpus < needed:
        wrong = f"is {section.node.cpus}, and the ranks of a node take {needed} (cpus_per_worker)"
        yield Problem(("kubernetes", "node", "cpus"), wrong, f"write {needed} or more, or a smaller `cpus_per_worker`")
    hosts = section.num_of_hosts
    if whole.nodes % hosts:
        wrong = f"is {hosts}, and the pool's {whole.nodes} nodes are no whole slices"
        near = max(hosts, whole.nodes // hosts * hosts)
        yield Problem(("kubernetes", "num_of_hosts"), wrong, f"write `nodes: {near}`, or another number")
    serve = section.serve
    if serve and (serve.accelerators_per_replica == 0) != whole.is_cpu:
        wanted = "0" if whole.is_cpu else "1 or more"
        yield Problem(("kubernetes", "serve", "accelerators_per_replica"), f"must be {wanted} on this pool")
    if serve and serve.accelerators_per_replica > whole.accelerators_per_node:
        wrong = f"is {serve.accelerators_per_replica}, and a node has {whole.accelerators_per_node}"
        key = ("kubernetes", "serve", "accelerators_per_replica")
        yield Problem(key, wrong, f"write {whole.accelerators_per_node} or less")


def _store(whole: Pool) -> Iterator[Problem]:
    if whole.storage.kind != "s3":
        yield Problem(("storage", "kind"), f"is {whole.storage.kind}, which a pod cannot reach", "write `kind: s3`")


def _image(whole: Pool, section: Kubernetes) -> Iterator[Problem]:
    if whole.image is None:
        yield Problem(
            ("image",), "is missing: pods need one", "write `image: {ref: REGISTRY/NAME@sha256:..., versions: {...}}`"
        )
        return
    if not IMAGE.fullmatch(whole.image.ref):
        wrong = f"must be an image by digest, it is {show(whole.image.ref)}"
        yield Problem(
            ("image", "ref"), wrong, "write REGISTRY/NAME@sha256: and 64 hex digits (`crane digest` prints them)"
        )
    versions = whole.image.versions
    wanted = [*CONTRACT, *(["cuda"] if section.accelerator_resource == "nvidia.com/gpu" else [])]
    if missing := [name for name in wanted if name not in versions]:
        yield Problem(("image", "versions"), f"does not say {', '.join(missing)}", "write what the image holds")
    try:
        ray = Version(versions.get("ray", str(TOKEN_AUTH_SINCE)))
    except InvalidVersion:
        yield Problem(("image", "versions", "ray"), f"is no version, it is {show(versions['ray'])}")
        return
    if section.token_auth and ray < TOKEN_AUTH_SINCE:
        wrong = f"needs Ray {TOKEN_AUTH_SINCE} or newer, the image has {ray}"
        yield Problem(("kubernetes", "token_auth"), wrong, "write `token_auth: false`, or take a newer image")


def _names(whole: Pool, section: Kubernetes) -> Iterator[Problem]:
    for name in whole.secrets:
        if name not in section.secrets:
            wrong = f"does not say where `{name}` is"
            yield Problem(("kubernetes", "secrets"), wrong, f"write `{name}: {{name: SECRET, key: KEY}}` there")
    for name in section.secrets:
        if name not in whole.secrets:
            known = ", ".join(whole.secrets) or "none"
            yield Problem(
                ("kubernetes", "secrets", name),
                f"is no secret of the pool; there are: {known}",
                "name it under `secrets:`, or leave it out",
            )
    for name, value in section.fabric.env.items():
        if whole.env.get(name, value) != value:
            yield Problem(("kubernetes", "fabric", "env", name), "is set otherwise under `env:`", "keep one of the two")

"""The `kubernetes:` section: what is understood, and what is refused with the nearest thing to write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.orders import CPU, KUBERNETES, POOL, TPU, on, pool
from warpbeam import pool_kubernetes
from warpbeam.errors import PlatformError
from warpbeam.job import Section
from warpbeam.pool import parse_pool

SECTIONS = [
    found
    for found in vars(pool_kubernetes).values()
    if isinstance(found, type) and issubclass(found, Section) and found.__module__ == pool_kubernetes.__name__
]
KUEUE: dict[str, Any] = {"gang": "kueue", "queue": "training"}
GROUP = {"name": "prepare", "cpus": 8, "memory_gib": 32, "max": 4}


def refused(kubernetes: dict[str, Any] | None = None, **changes: Any) -> str:
    with pytest.raises(PlatformError) as caught:
        pool(kubernetes, **changes)
    return str(caught.value).replace("\nfix: ", "; ")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_says_what_it_is(section: type[Section]) -> None:
    assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_defaults_and_json() -> None:
    made = pool()
    assert parse_pool(made.to_dict()) == made
    section = made.kubernetes
    assert section is not None
    assert (section.gang, section.retries, section.token_auth) == ("gate", 1, True)
    assert section.teams["red"].service_account == "warpbeam"
    for base in (TPU, CPU):
        assert parse_pool(on(base).to_dict()) == on(base)


@pytest.mark.parametrize(
    ("kubernetes", "wrong"),
    [
        ({"gang": "kueue"}, "gang kueue needs one; write `queue:` there, or once for the pool"),
        ({"queue": "a"}, "queue: has no meaning with gang gate; leave it out, or write `gang: kueue`"),
        ({"gang": "scheduler-plugins", "queue": "a"}, "has no meaning with gang scheduler-plugins"),
        ({"gang": "slurm"}, "must be kueue | volcano | yunikorn | scheduler-plugins | gate"),
        ({"gang": "volcano", "queue": "a", "queue_priority": "high"}, "write `priority_class` instead"),
        ({"elastic_jobs_gate": True}, "is a gate of Kueue"),
        (
            KUEUE | {"cpu_groups": [GROUP]},
            "Kueue refuses without its gate ElasticJobsViaWorkloadSlices; leave them out",
        ),
        (
            KUEUE | {"elastic_jobs_gate": True, "cpu_groups": [GROUP | {"name": f"g{i}"} for i in range(6)]},
            "write 5 or fewer, beside the training group",
        ),
        ({"cpu_groups": [GROUP, GROUP]}, 'cpu_groups[1].name: stands there twice: the text "prepare"'),
        ({"cpu_groups": [GROUP | {"name": "head"}]}, "is taken"),
        (
            {"shm_gib": 960},
            "shm_gib: is 960, and a node has 960 GiB; what lies there counts as memory; write 480 or less",
        ),
        ({"num_of_hosts": 2}, "is for slices of google.com/tpu"),
        ({"node": {"cpus": 16, "memory_gib": 960}}, "node.cpus: is 16, and the ranks of a node take 32"),
        ({"accelerator_resource": None}, "write for example `accelerator_resource: nvidia.com/gpu`"),
        ({"accelerator_resource": "nvidia.com/gpus"}, "did you mean `nvidia.com/gpu`?"),
        ({"credentials": {}}, "needs either `secret` or `workload_identity: true`"),
        ({"credentials": {"secret": "s3", "workload_identity": True}}, "needs either `secret`"),
        (
            {"secrets": {"cert": {"name": "tls", "key": "ca"}}},
            "does not say where `hf-token` is; write `hf-token: {name:",
        ),
        ({"secrets": KUBERNETES["secrets"] | {"x": {"name": "x", "key": "x"}}}, "is no secret of the pool"),
        ({"fabric": {"env": {"NCCL_SOCKET_IFNAME": "ib0"}}}, "is set otherwise under `env:`"),
        ({"fabric": {"resources": {"hca": 8}}}, "is no extended resource"),
        ({"teams": {}}, "teams: must not be empty"),
        (
            {"teams": {"a": {"namespace": "x"}, "b": {"namespace": "x"}}},
            "is also a's: whoever reaches a Ray cluster runs",
        ),
        ({"teams": {"a": {"namespace": "Team A"}}}, "write for example `team-a`"),
        (
            {"teams": {"a": {"namespace": "x", "service_account_annotations": {"a/b": "c"}}}},
            "are for workload identity, and the pool's credentials are a secret",
        ),
        ({"tolerations": [{"key": "a", "value": "b"}]}, "has no meaning with operator Exists"),
        ({"tolerations": [{"key": "a", "toleration_seconds": 5}]}, "needs effect NoExecute"),
        ({"node_selector": {"a b": "c"}}, "is no label's or annotation's key"),
        ({"node_selector": {"a": "c d"}}, "is no label's value"),
        ({"network": {"api_server": [], "store": [{"cidr": "0.0.0.0/0"}]}}, "api_server: must not be empty"),
        ({"network": {"api_server": [{"cidr": "10.0.0.1/8"}], "store": [{"namespace": "s"}]}}, "is no network"),
        ({"network": {"api_server": [{}], "store": [{"namespace": "s"}]}}, "needs either `namespace` or `cidr`"),
        ({"serve": {"accelerators_per_replica": 16, "token": {"name": "t", "key": "t"}}}, "write 8 or less"),
        (
            {"serve": {"accelerators_per_replica": 0, "token": {"name": "t", "key": "t"}}},
            "must be 1 or more on this pool",
        ),
        ({"priorityclass": "x"}, "did you mean `priority_class`?"),
        ({"retries": 11}, "must be 10 or less"),
    ],
)
def test_contradictions(kubernetes: dict[str, Any], wrong: str) -> None:
    assert wrong in refused(kubernetes)


def test_an_image_is_named_by_its_digest_and_says_what_it_holds() -> None:
    versions = POOL["image"]["versions"]
    assert "must be an image by digest" in refused(image={"ref": "registry/train:latest", "versions": versions})
    assert "image: is missing: pods need one" in refused(image=None)
    some = {name: version for name, version in versions.items() if name not in ("cuda", "torch")}
    assert "does not say torch, cuda" in refused(image=POOL["image"] | {"versions": some})
    old = POOL["image"] | {"versions": versions | {"ray": "2.51.1"}}
    assert "token_auth: needs Ray 2.52.0 or newer, the image has 2.51.1" in refused(image=old)
    assert pool({"token_auth": False}, image=old).image is not None


def test_a_pod_reaches_no_folder_of_a_laptop() -> None:
    assert "storage.kind: is local, which a pod cannot reach" in refused(
        storage={"uri": "file:///data", "kind": "local"}
    )


def test_a_cpu_pool_counts_no_accelerators() -> None:
    quota = {"accelerators": 1, "cpus": 8, "memory_gib": 32}
    with pytest.raises(PlatformError, match="must be 0 on a CPU pool"):
        on(CPU, teams={"red": {"namespace": "team-red", "quota": quota}})
    with pytest.raises(PlatformError, match="has no meaning on a CPU pool"):
        on(CPU, accelerator_resource="nvidia.com/gpu")


def test_slices_are_whole() -> None:
    assert "4 nodes are no whole slices" in refused(
        TPU["kubernetes"] | {"num_of_hosts": 3}, **{k: TPU[k] for k in ("accelerator", "accelerators_per_node")}
    )

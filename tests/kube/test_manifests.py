"""Every kind on every pool, as the API server sees it: taken as it is rendered, refused once it is spoilt."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.lab.api import Api, Refused
from tests.kube.lab.layout import REPOSITORY
from tests.kube.runs import pods_of, pool_file, rendered, tenancy
from warpbeam.errors import PlatformError

Object = dict[str, Any]
JOB = REPOSITORY / "cluster/examples/job/job.yaml"
OPTIONS = {
    "rayjob": [],
    "raycluster": [],
    "rayservice": ["--model", "s3://training/warpbeam/teams/support/models/example-8b/1"],
    "raycronjob": ["--schedule", "0 3 * * *"],
}
POOLS = ("dgx-h100", "a100-spot", "tpu-v5e", "cpus")
SPOILT = "team-spoilt"
NOT_OFFERED = {
    ("dgx-h100", "raycronjob"): "would not reach queue `training`",
    ("a100-spot", "rayservice"): "serves no models",
    ("tpu-v5e", "rayservice"): "serves no models",
    ("tpu-v5e", "raycronjob"): "would not reach queue `tpu`",
}


def make_cpus(pool: Object) -> None:
    """A pool without accelerators, which serves too."""
    pool.update(name="cpus", accelerator={"kind": "cpu", "memory_gib": 8}, nodes=4, accelerators_per_node=32)
    pool["kubernetes"].update(
        accelerator_resource=None,
        node_selector={},
        serve={"accelerators_per_replica": 0, "token": {"name": "serve", "key": "token"}},
    )
    pool["kubernetes"]["teams"]["support"]["quota"]["accelerators"] = 0


def make(folder: Path, name: str) -> Path:
    if name == "cpus":
        return pool_file(folder, "a100-spot", make_cpus, namespace="team-cpus")
    return pool_file(folder, name, lambda _: None, namespace=f"team-{name}")


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, api: Api) -> Iterator[Path]:
    """A pool file whose team's namespace is there, with all policies in force."""
    folder = tmp_path_factory.mktemp("pools")
    path = make(folder, request.param)
    with tenancy(api, rendered(JOB, path, "--kind", "tenancy", "--force", "--accelerators", "16")):
        yield path


@pytest.fixture(scope="module")
def restricted(api: Api) -> str:
    """A namespace that enforces Pod Security `restricted`, and nothing else."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted", "labels": labels}})
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "warpbeam", "namespace": "restricted"},
    }
    api.apply(account)
    return "restricted"


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_manifest_is_taken(api: Api, pool: Path, restricted: str, kind: str) -> None:
    words = ["--kind", kind, "--force", "--accelerators", "16", *OPTIONS[kind]]
    name = pool.stem.removeprefix("team-")
    if (name, kind) in NOT_OFFERED:
        with pytest.raises(PlatformError, match=NOT_OFFERED[name, kind]):
            rendered(JOB, pool, *words)
        return
    documents = rendered(JOB, pool, *words)
    for document in documents:
        api.apply(document, dry_run=True)
    pods = list(pods_of(documents, pool.stem))
    assert pods
    for pod in pods:
        api.apply(pod, dry_run=True)
        elsewhere = {**pod, "metadata": {**pod["metadata"], "namespace": restricted}}
        if "IPC_LOCK" in str(pod["spec"]):  # the pool says that its namespace must be a privileged one
            with pytest.raises(Refused, match="unrestricted capabilities") as caught:
                api.apply(elsewhere, dry_run=True)
            assert "IPC_LOCK" in caught.value.message
        else:
            api.apply(elsewhere, dry_run=True)


def test_an_elastic_job_is_taken(api: Api, pool: Path) -> None:
    for document in rendered(JOB, pool, "--force"):
        api.apply(document, dry_run=True)


def spoilt(document: Object) -> Iterator[tuple[str, Object]]:
    """The same manifest with one mistake: a field that nobody knows, in every object whose fields are known."""
    for path in _objects(document, ()):
        found = copy.deepcopy(document)
        at: Any = found
        for step in path:
            at = at[step]
        at["nobodyKnows"] = "x"
        yield ".".join(map(str, path)) or "(top)", found


FREE = (
    "labels",
    "annotations",
    "rayStartParams",
    "limits",
    "requests",
    "nodeSelector",
    "metadata",
    "matchLabels",
    "data",
)
"""Where any key may stand: maps, and `metadata` of a Ray job, which is one too."""


def _objects(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        if not path or path[-1] not in FREE:
            yield path
        for key, inner in value.items():
            yield from _objects(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _objects(inner, (*path, number))


WRONG: dict[str, tuple[tuple[Any, ...], Any]] = {
    "text for a number": (("spec", "backoffLimit"), "1"),
    "a number for text": (("spec", "entrypoint"), 1),
    "text for a list": (("spec", "rayClusterSpec", "workerGroupSpecs"), "two"),
    "no such upscaling mode": (("spec", "rayClusterSpec", "autoscalerOptions", "upscalingMode"), "Leisurely"),
    "no amount": (
        ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0, "resources", "limits", "cpu"),
        "many",
    ),
    "no such token mode": (("spec", "rayClusterSpec", "authOptions", "mode"), "password"),
    "a port that is none": (
        ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0, "ports", 0, "containerPort"),
        "x",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    path = pool_file(tmp_path_factory.mktemp("whole"), "a100-spot", lambda _: None, namespace=SPOILT)
    return rendered(JOB, path, "--accelerators", "16", "--force")


@pytest.fixture(scope="module")
def place(api: Api) -> None:
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPOILT}})


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_value_is_refused(api: Api, place: None, whole: list[Object], what: str) -> None:
    path, value = WRONG[what]
    found = copy.deepcopy(whole[-1])
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    said = answer(api, found)
    names = [step for step in path if isinstance(step, str)]
    assert any(name in said for name in names[-2:]), said  # a map's key is told as the map


def test_a_field_that_nobody_knows_is_refused_wherever_it_stands(api: Api, place: None, whole: list[Object]) -> None:
    taken, count = [], 0
    for document in whole:
        api.apply(document, dry_run=True)
        for where, found in spoilt(document):
            count += 1
            if "nobodyKnows" not in answer(api, found):
                taken.append(f"{document['kind']} {where}")
    assert not taken
    assert count > 100


def answer(api: Api, document: Object) -> str:
    """What the API server says to it; empty where it is taken."""
    try:
        api.apply(document, dry_run=True)
    except Refused as refused:
        return refused.message
    return ""

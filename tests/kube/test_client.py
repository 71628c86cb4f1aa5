"""The client's requests against a real API server with KubeRay's CRDs: what it takes, refuses and streams."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kube.apiserver import ApiServer
from tests.unit.kube.orders import job, order, pool
from warpbeam.errors import PlatformError, UserError, WarpbeamError
from warpbeam.kube.client import Cluster
from warpbeam.kube.client_errors import Dropped, Gone
from warpbeam.kube.drift import differences, to_apply
from warpbeam.kube.order import Order
from warpbeam.kube.rbac import driver_rights, submitter_rules
from warpbeam.kube.render import render
from warpbeam.kube.watch import Patience, follow
from warpbeam.launch.kube_submit import There, there_is, try_out

Object = dict[str, Any]


def ordered(namespace: str, name: str = "tiny", **kubernetes: Any) -> Order:
    teams = {"red": {"namespace": namespace, "submitters": ["ml"]}}
    return order(on=pool({"teams": teams, **kubernetes}), of=job(name=name))


def documents(namespace: str, name: str = "tiny") -> list[Object]:
    return [copy.deepcopy(dict(found)) for found in render(ordered(namespace, name)).documents]


def ray_job(namespace: str, name: str = "tiny") -> Object:
    return documents(namespace, name)[-1]


def reason(question: Callable[[], object]) -> str:
    with pytest.raises(WarpbeamError) as caught:
        question()
    return caught.value.reason


def test_apply_is_strict_and_a_dry_run_keeps_nothing(apiserver: ApiServer) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    try_out(cluster, documents(namespace), taken=False)
    assert cluster.get("RayJob", "tiny", namespace) is None
    for document in documents(namespace):
        cluster.apply(document)
    live = cluster.get("RayJob", "tiny", namespace)
    assert live is not None
    assert there_is(live, ray_job(namespace)) is There.SAME
    assert [item["metadata"]["name"] for item in cluster.list("RayJob", namespace).items] == ["tiny"]
    try_out(cluster, documents(namespace), taken=True)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("spec", "preRunningDeadlineSecondz"), 5, "operator_too_old"),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "nodeSelektor"), {}, "operator_too_old"),
        (("spec", "suspend"), "yes", "kube_invalid"),
        (("spec", "submissionMode"), 7, "kube_invalid"),
    ],
)
def test_mutations_are_refused(apiserver: ApiServer, path: tuple[str, ...], value: Any, expected: str) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    document = ray_job(namespace)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert reason(lambda: cluster.apply(document)) == expected
    assert cluster.get("RayJob", "tiny", namespace) is None


def test_patch_delete_and_the_uid(apiserver: ApiServer) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    made = cluster.apply(ray_job(namespace))
    changed = cluster.patch("RayJob", "tiny", namespace, {"spec": {"backoffLimit": 3}})
    assert changed["spec"]["backoffLimit"] == 3
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"backoffLimit": 9}}
    assert reason(lambda: cluster.patch("RayJob", "tiny", namespace, stale)) == "kube_changed"
    assert reason(lambda: cluster.delete("RayJob", "tiny", namespace, uid="0-0")) == "kube_changed"
    assert cluster.delete("RayJob", "tiny", namespace, uid=made["metadata"]["uid"])
    assert not cluster.delete("RayJob", "tiny", namespace)
    assert cluster.get("RayJob", "tiny", namespace) is None
    assert reason(lambda: cluster.patch("RayJob", "tiny", namespace, {"spec": {}})) == "kube_missing"


def test_a_field_that_somebody_else_has_set_is_a_conflict(apiserver: ApiServer) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    cluster.apply(ray_job(namespace))
    other = apiserver.cluster()
    other.patch("RayJob", "tiny", namespace, {"spec": {"suspend": False}})
    # the same manager by another operation: what was handed over is not taken back by force
    assert reason(lambda: cluster.apply(ray_job(namespace))) == "kube_conflict"


def test_drift_is_what_an_apply_would_change(apiserver: ApiServer) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    rendered = ray_job(namespace)

    def drift() -> list[str]:
        live = cluster.get("RayJob", "tiny", namespace)
        return differences(live, cluster.apply(to_apply(rendered, live), dry_run=True, force=True))

    assert "+kind: RayJob" in drift()
    cluster.apply(rendered)
    assert drift() == []
    cluster.patch("RayJob", "tiny", namespace, {"spec": {"suspend": False, "backoffLimit": 2}})
    assert drift() == [], "both are handed over"
    cluster.patch("RayJob", "tiny", namespace, {"spec": {"activeDeadlineSeconds": 77}})
    assert "-  activeDeadlineSeconds: 77" in drift()


# ---- who may not


def test_no_namespace_no_crds_no_kubeconfig(
    apiserver: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    assert reason(lambda: cluster.apply(ray_job("nowhere"))) == "no_namespace"
    assert reason(lambda: cluster.list("Workload", namespace)) == "no_crds", "no Kueue here"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert reason(Cluster.connect) == "no_kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig("ann")))
    with pytest.raises(UserError, match="nosuch") as caught:
        Cluster.connect("nosuch")
    assert "--context lab" in caught.value.fix
    (tmp_path / "broken").write_text("{")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    assert reason(Cluster.connect) == "no_kubeconfig"
    assert reason(Cluster.inside) == "no_pod_token"


def test_an_expired_token_and_a_missing_right(apiserver: ApiServer) -> None:
    namespace = apiserver.namespace()
    expired = apiserver.cluster("ann", token="long-gone")
    assert reason(lambda: expired.list("RayJob", namespace)) == "kube_login"
    with pytest.raises(PlatformError, match=r"bob may not list rayjobs\.ray\.io in namespace") as caught:
        apiserver.cluster("bob").list("RayJob", namespace)
    assert caught.value.reason == "kube_forbidden"


def test_a_server_that_is_not_there_is_told_in_seconds(apiserver: ApiServer) -> None:
    began = time.monotonic()
    assert reason(lambda: apiserver.cluster(url="https://127.0.0.1:9").list("Pod")) == "kube_unreachable"
    assert reason(lambda: apiserver.cluster(url="https://192.0.2.1:6443").list("Pod")) == "kube_unreachable"
    assert time.monotonic() - began < 15


# ---- the Role suffices, and less does not


def grant(cluster: Cluster, namespace: str, rules: list[Object]) -> None:
    metadata = {"name": "under-test", "namespace": namespace}
    version, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    cluster.apply({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}, force=True)
    cluster.apply(
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [{"apiGroup": group, "kind": "Group", "name": "ml"}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "under-test"},
        }
    )


def without(rules: list[Object], resource: str, verb: str) -> list[Object]:
    """The same rules, less one verb on one resource."""
    found = []
    for rule in copy.deepcopy(rules):
        kept = [name for name in rule["resources"] if name != resource]
        if len(kept) < len(rule["resources"]):
            left = [name for name in rule["verbs"] if name != verb]
            found += [{**rule, "resources": [resource], "verbs": left}] if left else []
        found += [{**rule, "resources": kept}] if kept else []
    return found


def everything_a_submitter_does(cluster: Cluster, namespace: str) -> None:
    """The requests of `submit --kube`, `status`, `stop` and `render --check`, on a run that has ended before."""
    rendered = documents(namespace)
    live = cluster.get("RayJob", "tiny", namespace)
    try_out(cluster, rendered, taken=False)
    if live is not None:
        cluster.delete("RayJob", "tiny", namespace)
    for document in rendered:
        cluster.apply(document)
        cluster.get(document["kind"], document["metadata"]["name"], namespace)
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda kind: _looks(cluster, kind, namespace), ("RayJob", "RayCluster", "Pod", "Event")))
    cluster.patch("RayJob", "tiny", namespace, {"spec": {"suspend": True}})
    with pytest.raises(PlatformError) as caught:  # there is no such pod, and that is what is said
        list(cluster.logs("none", namespace, "c", follow=False))
    if caught.value.reason == "kube_forbidden":
        raise caught.value


def _looks(cluster: Cluster, kind: str, namespace: str) -> None:
    listing = cluster.list(kind, namespace)
    next(cluster.watch(kind, namespace, listing.version, timeout_s=1), None)


RULES = submitter_rules(kueue=False)
NEEDED = [(resource, verb) for rule in RULES for resource in rule["resources"] for verb in rule["verbs"]]
NOT_BY_THE_CLIENT = {("pods", "get")}
"""Asked for only where a log breaks off."""


def test_the_submitters_role_suffices(apiserver: ApiServer) -> None:
    namespace = apiserver.namespace()
    grant(apiserver.cluster(), namespace, RULES)
    everything_a_submitter_does(apiserver.cluster("ann"), namespace)
    everything_a_submitter_does(apiserver.cluster("ann"), namespace)


@pytest.mark.parametrize(("resource", "verb"), [case for case in NEEDED if case not in NOT_BY_THE_CLIENT])
def test_less_does_not(apiserver: ApiServer, resource: str, verb: str) -> None:
    admin, namespace = apiserver.cluster(), apiserver.namespace()
    grant(admin, namespace, without(RULES, resource, verb))
    if (resource, verb) == ("rayjobs", "delete"):
        admin.apply(ray_job(namespace))  # one has ended before
    with pytest.raises(PlatformError) as caught:
        everything_a_submitter_does(apiserver.cluster("ann"), namespace)
    assert caught.value.reason == "kube_forbidden", caught.value


def test_a_driver_may_change_its_own_rayjob_and_no_other(apiserver: ApiServer) -> None:
    admin, namespace = apiserver.cluster(), apiserver.namespace()
    for name in ("tiny", "other"):
        admin.apply(ray_job(namespace, name))
    role, binding = driver_rights(ordered(namespace))
    binding["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]
    admin.apply(role)
    admin.apply(binding)
    driver = apiserver.cluster("bob")
    assert driver.get("RayJob", "tiny", namespace) is not None
    driver.patch("RayJob", "tiny", namespace, {"spec": {"backoffLimit": 1}})
    assert reason(lambda: driver.patch("RayJob", "other", namespace, {"spec": {"backoffLimit": 1}})) == "kube_forbidden"
    assert reason(lambda: driver.list("RayJob", namespace)) == "kube_forbidden"
    assert reason(lambda: driver.delete("RayJob", "tiny", namespace)) == "kube_forbidden"


# ---- watches


def test_a_watch_sees_changes_and_a_forgotten_version_is_gone(apiserver: ApiServer) -> None:
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    listing = cluster.list("RayJob", namespace)
    cluster.apply(ray_job(namespace))
    cluster.delete("RayJob", "tiny", namespace)
    events = [event.type for event in cluster.watch("RayJob", namespace, listing.version, timeout_s=2)]
    assert events[:2] == ["ADDED", "DELETED"]
    with pytest.raises(Gone):
        list(cluster.watch("RayJob", namespace, "1", timeout_s=2))


def test_following_survives_an_api_server_that_goes_and_comes_back(apiserver: ApiServer) -> None:
    """Not a word for a short absence; what happened meanwhile is seen after it."""
    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    cluster.apply(ray_job(namespace, "before"))
    seen: list[set[str]] = []
    arrived = threading.Event()

    def watching() -> None:
        with suppress(Dropped):  # the session's server ends before this thread does
            for objects in follow(cluster, "RayJob", namespace, patience=Patience(give_up_s=60)):
                seen.append(set(objects))
                arrived.set()

    threading.Thread(target=watching, daemon=True).start()
    assert arrived.wait(20)
    arrived.clear()
    apiserver.stop("kube-apiserver")
    with pytest.raises(Dropped):
        cluster.list("Pod", namespace)
    apiserver.start("kube-apiserver")
    apiserver.wait_ready()
    cluster.apply(ray_job(namespace, "after"))
    deadline = time.monotonic() + 40
    while seen[-1] != {"before", "after"} and time.monotonic() < deadline:
        arrived.wait(1)
        arrived.clear()
    assert seen[-1] == {"before", "after"}


def test_pages_are_one_listing(apiserver: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpbeam.kube import client

    cluster, namespace = apiserver.cluster(), apiserver.namespace()
    expected = {f"many-{number}" for number in range(7)}
    for name in expected:
        cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
    monkeypatch.setattr(client, "PAGE", 3)
    assert {item["metadata"]["name"] for item in cluster.list("ConfigMap", namespace).items} >= expected
    again = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "many-0", "namespace": namespace}}
    assert reason(lambda: cluster.create(again)) == "kube_exists"

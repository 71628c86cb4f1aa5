"""Kueue as a pod, from its own manifests: webhooks, certificates and rights are real, only the image is ours."""

from __future__ import annotations

from typing import Any, cast

from tests.kube.lab import images
from tests.kube.lab.api import Api, Refused
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.programs import built_folder, manifests
from tests.kube.lab.sandbox import wait_for

NAMESPACE = "kueue-system"
DEPLOYMENT = "kueue-controller-manager"
_FIRST = {"Namespace": 0, "CustomResourceDefinition": 1}


def install(api: Api) -> None:
    """Apply it, and wait until its webhooks answer."""
    documents = [_changed(document) for document in manifests("kueue") if document["kind"] != "APIService"]
    for document in sorted(documents, key=lambda each: _FIRST.get(each["kind"], 2 + _calls_webhooks(each))):
        api.create(document)
    wait_for("Kueue's pod", lambda: _is_available(api), 180)
    # Right after its pod is ready its service may still refuse.
    wait_for("Kueue's webhooks", lambda: _answers(api), 60)


def is_installed(api: Api) -> bool:
    """Whether it answers."""
    return "Workload" in api.kinds("kueue.x-k8s.io/v1beta2") and _answers(api)


def _calls_webhooks(document: dict[str, Any]) -> bool:
    return str(document["kind"]).endswith("WebhookConfiguration")


def _changed(document: dict[str, Any]) -> dict[str, Any]:
    match document["kind"]:
        case "Deployment":
            _run_the_binary(document["spec"]["template"]["spec"])
        case "ConfigMap":
            _configure(document["data"])
    return document


def _run_the_binary(pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    container.update(
        image=f"{images.RUNTIME}:lab",
        imagePullPolicy="Never",
        command=["/opt/programs/kueue"],
        resources={"requests": {"cpu": "100m", "memory": "128Mi"}},  # less would starve beside runs on few cores
    )
    del container["livenessProbe"]  # a machine that is busy for a second is no reason to start it anew
    container["volumeMounts"].append({"name": "programs", "mountPath": "/opt/programs", "readOnly": True})
    pod["volumes"].append({"name": "programs", "hostPath": {"path": str(built_folder() / "bin")}})
    pod["securityContext"]["runAsUser"] = 65532


def _configure(data: dict[str, Any]) -> None:
    """As infra/ ships it; only one of it runs here."""
    import yaml

    (key,) = data
    config = cast("dict[str, Any]", yaml.safe_load((REPOSITORY / "infra/kueue/config.yaml").read_text()))
    config["leaderElection"] = {"leaderElect": False}
    data[key] = yaml.safe_dump(config)


def _is_available(api: Api) -> bool:
    found = api.get("apps/v1", "Deployment", NAMESPACE, DEPLOYMENT) or {}
    return bool(found.get("status", {}).get("availableReplicas"))


def _answers(api: Api) -> bool:
    try:
        api.apply(
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}},
            dry_run=True,
        )
    except Refused:
        return False
    return True

"""The RayCluster, the RayJob on it, its schedule, and the RayService."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.unit.kube.orders import CPU, TPU, job, on, order, pool
from warpbeam.errors import PlatformError
from warpbeam.kube import names, service
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.render import render
from warpbeam.serve import guard

Manifest = dict[str, Any]
GROUP = {"name": "prepare", "cpus": 8, "memory_gib": 32, "max": 4, "idle_timeout_s": 90}


def last(made: Order) -> Manifest:
    return dict(render(made).documents[-1])


def test_the_head_runs_no_tasks_and_does_not_restart_in_place() -> None:
    spec = last(order())["spec"]["rayClusterSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["headGroupSpec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["rayVersion"] == "2.58.0"
    assert spec["authOptions"] == {"mode": "token"}


def test_a_rigid_group_is_all_or_nothing() -> None:
    spec = last(order())["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    assert "enableInTreeAutoscaling" not in spec


def test_cpu_groups_start_from_zero() -> None:
    spec = last(order(on=pool({"cpu_groups": [GROUP]})))["spec"]["rayClusterSpec"]
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"
    train, prepare = spec["workerGroupSpecs"]
    assert (train["minReplicas"], train["maxReplicas"]) == (2, 2)
    assert (prepare["replicas"], prepare["minReplicas"], prepare["maxReplicas"]) == (0, 0, 4)
    assert prepare["idleTimeoutSeconds"] == 90


def test_an_elastic_group_starts_at_its_gang() -> None:
    spec = last(order(of=job(resources={"accelerators": {"min": 8, "max": 24}})))["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 3)
    assert spec["enableInTreeAutoscaling"] is True


def test_the_hosts_of_a_slice() -> None:
    (group,) = last(order(Kind.RAYCLUSTER, on=on(TPU)))["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["numOfHosts"]) == (1, 4)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"


def test_a_cluster_without_a_queue_waits_too() -> None:
    assert last(order(Kind.RAYCLUSTER))["spec"]["suspend"] is True
    assert "suspend" not in last(order(Kind.RAYCLUSTER, on=pool({"gang": "volcano", "queue": "q"})))["spec"]


# ---- a run


def test_every_end_of_a_run_gives_everything_back() -> None:
    job = last(order(on=pool({"deadlines": {"pre_running_s": 60, "active_s": 3600}, "retries": 2})))
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert (spec["preRunningDeadlineSeconds"], spec["activeDeadlineSeconds"], spec["backoffLimit"]) == (60, 3600, 0)
    assert job["metadata"]["annotations"][names.RETRIES] == "2", "lent by the driver"
    assert "deletionStrategy" not in spec
    assert "ttlSecondsAfterFinished" not in spec, "accelerators would be held for it"


def test_a_lost_head_is_a_new_cluster() -> None:
    manifest = last(order())
    assert manifest["spec"]["submissionMode"] == "K8sJobMode"
    assert manifest["metadata"]["annotations"]["ray.io/disable-provisioned-head-restart"] == "true"


def test_the_entrypoint_is_the_same_as_on_any_ray_cluster() -> None:
    spec = last(order())["spec"]
    assert spec["entrypoint"] == "warpbeam run job.yaml --yes"
    assert spec["runtimeEnvYAML"] == "working_dir: /bundle\n"
    assert spec["metadata"] == {"warpbeam_run": "tiny", "warpbeam_team": "red"}


def test_a_run_keeps_its_name_where_the_object_cannot() -> None:
    run = "a-name-of-more-than-forty-seven-characters-is-a-fine-run"
    manifest = last(order(of=job(name=run)))
    assert manifest["metadata"]["name"] == names.object_name(run) != run
    assert manifest["metadata"]["labels"][names.RUN] == run
    role, binding = render(order(of=job(name=run))).documents[:2]
    assert role["rules"][0]["resourceNames"] == [manifest["metadata"]["name"]]
    assert len(role["metadata"]["name"]) <= 63
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_the_driver_may_touch_its_own_run_only() -> None:
    role = render(order()).documents[0]
    assert role["rules"] == [
        {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "resourceNames": ["tiny"], "verbs": ["get", "patch"]}
    ]


def test_no_secret_is_in_a_manifest() -> None:
    text = json.dumps(render(order(of=job(secrets=[{"env": "HF_TOKEN", "from": "hf-token"}]))).documents)
    assert '"name": "HF_TOKEN", "valueFrom"' in text
    assert '"name": "HF_TOKEN", "value"' not in text


# ---- a schedule


def test_each_firing_is_a_run_of_its_own() -> None:
    manifest = last(order(Kind.RAYCRONJOB))
    assert manifest["kind"] == "RayCronJob"
    assert manifest["spec"]["schedule"] == "0 3 * * *"
    template = manifest["spec"]["jobTemplate"]
    assert template["entrypoint"] == r"warpbeam run job.yaml --yes --name \${RAY_CLUSTER_NAME%-*}"
    assert template["submitterConfig"] == {"backoffLimit": 0}
    assert template["suspend"] is True


def test_a_schedules_name_leaves_room_for_its_jobs() -> None:
    assert len(last(order(Kind.RAYCRONJOB, of=job(name="a" * 47)))["metadata"]["name"]) == 41


# ---- a served model


def test_a_service_is_one_replica_a_pod() -> None:
    manifest = last(order(Kind.RAYSERVICE))
    (group,) = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["groupName"], group["minReplicas"], group["maxReplicas"]) == ("serve", 2, 2)
    (application,) = YAML(typ="safe").load(manifest["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "warpbeam.serve.app:build_app"
    arguments = application["args"]
    assert (arguments["replicas"], arguments["gpus_per_replica"], arguments["cpus_per_replica"]) == (2, 1, 12)
    assert arguments["require_token"] is True
    assert arguments["storage"]["endpoint_url"] == "http://s3.storage.svc:9000"


def test_its_arguments_are_those_of_the_application() -> None:
    from warpbeam.serve.app import AppArgs

    manifest = last(order(Kind.RAYSERVICE))
    (application,) = YAML(typ="safe").load(manifest["spec"]["serveConfigV2"])["applications"]
    assert AppArgs.model_validate(application["args"]).model.startswith("s3://")


def test_its_clients_need_a_token() -> None:
    assert service.TOKEN_ENV == guard.TOKEN_ENV
    (group,) = last(order(Kind.RAYSERVICE))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    variables = {found["name"]: found for found in group["template"]["spec"]["containers"][0]["env"]}
    assert variables[service.TOKEN_ENV]["valueFrom"]["secretKeyRef"] == {"name": "serve", "key": "token"}


def test_its_head_may_be_replaced() -> None:
    options = last(order(Kind.RAYSERVICE))["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == "redis.redis.svc:6379"
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}
    bare = last(order(Kind.RAYSERVICE, on=on(CPU)))["spec"]["rayClusterConfig"]
    assert "gcsFaultToleranceOptions" not in bare


def test_a_pool_that_serves_nothing() -> None:
    with pytest.raises(PlatformError, match="serves no models") as caught:
        render(order(Kind.RAYSERVICE, on=pool({"serve": None})))
    assert "`serve: {token:" in caught.value.fix

"""`submit --kube`, `status`, `stop`, `wait`, `list` and `render --check` as they are typed, against a real API server
and a real S3 server; the cluster's own doings are written by hand (stage.py).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kube.apiserver import ApiServer
from tests.kube.stage import Command, Stage, folder_of, wait_for
from warpbeam.kube.rbac import submitter_rules
from warpbeam.pool_kubernetes import DIGEST_PLACEHOLDER
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import open_store

UNPLACED = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        }
    ],
}


class Scene:
    """One user with one run in a namespace of its own."""

    def __init__(self, server: ApiServer, tmp_path: Path, s3: StorageConfig) -> None:
        self.server, self.s3 = server, s3
        self.namespace = server.namespace()
        self.work = folder_of(tmp_path, self.namespace, s3)
        self.stage = Stage(server, self.namespace)
        self.kubeconfig: Path | None = server.kubeconfig("ann")
        self._grant()

    def _grant(self) -> None:
        admin, group = self.server.cluster(), "rbac.authorization.k8s.io"
        metadata = {"name": "warpbeam-submitter", "namespace": self.namespace}
        subject = {"apiGroup": group, "kind": "Group", "name": "ml"}
        of = {"apiGroup": group, "kind": "Role", "name": "warpbeam-submitter"}
        role = {"apiVersion": f"{group}/v1", "metadata": metadata}
        admin.apply({**role, "kind": "Role", "rules": submitter_rules(kueue=False)})
        admin.apply({**role, "kind": "RoleBinding", "subjects": [subject], "roleRef": of})

    def type(self, *words: str) -> Command:
        """Start a command."""
        return Command(self.work, self.kubeconfig, words)

    def json(self, *words: str) -> Any:
        """What a command prints as JSON."""
        command = self.type(*words, "--json")
        assert command.end() == 0, command.said
        return json.loads(command.printed)

    def submitted(self) -> Command:
        """A run that waits in the cluster, followed."""
        command = self.type("submit", "job.yaml", "--kube")
        command.until("it waits until all of it fits")
        return command


@pytest.fixture
def scene(apiserver: ApiServer, tmp_path: Path, s3: StorageConfig) -> Scene:
    return Scene(apiserver, tmp_path, s3)


def test_a_run_is_followed_from_the_queue_to_its_end(scene: Scene) -> None:
    command = scene.submitted()
    job = scene.stage.ray_job()
    assert job is not None
    assert (job["spec"]["suspend"], job["spec"]["backoffLimit"]) == (True, 0)
    bundles = [info.key for info in open_store(scene.s3).list(f"{scene.namespace}/teams/red/bundles/")]
    assert len(bundles) == 1
    assert scene.json("status", "tiny")["reason"] == "gang_waits"
    assert [line["state"] for line in scene.json("list")] == ["waiting"]
    scene.server.cluster().patch("RayJob", "tiny", scene.namespace, {"spec": {"suspend": False}})
    scene.stage.say("Initializing")
    scene.stage.pod("tiny-abc-w-1", **UNPLACED)
    command.until("pod tiny-abc-w-1 has no place: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu")
    scene.server.cluster().delete("Pod", "tiny-abc-w-1", scene.namespace)
    scene.stage.say("Running", jobStatus="RUNNING")
    command.until("it runs")
    scene.server.stop("kube-apiserver")  # every watch breaks
    scene.server.start("kube-apiserver")
    scene.server.wait_ready()
    scene.stage.say("Complete", jobStatus="SUCCEEDED")
    assert command.end() == 0, command.said
    assert "run tiny: done" in command.said
    assert "Traceback" not in command.said


def test_ctrl_c_detaches_and_the_same_command_attaches_again(scene: Scene) -> None:
    command = scene.submitted()
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 4
    assert "attach again: the same command" in command.said
    again = scene.type("submit", "job.yaml", "--kube")
    again.until("is in the cluster already, as it is here: following it")
    wait = scene.type("wait", "tiny")
    message = "Job entrypoint command failed with exit code 2, last available logs (truncated to 20,000 chars):\nbad"
    scene.stage.say("Failed", reason="AppFailed", message=message)
    assert again.end() == 2, again.said
    assert wait.end() == 2, wait.said
    assert "exit code 2" in wait.said


def test_a_missed_deadline_is_known_after_the_cluster_is_gone(scene: Scene) -> None:
    command = scene.submitted()
    scene.stage.say("Failed", reason="PreRunningDeadlineExceeded", message="late")
    assert command.end() == 3, command.said
    assert "it was not running by its deadline" in command.said
    scene.server.cluster().delete("RayJob", "tiny", scene.namespace)
    scene.kubeconfig = None
    status = scene.json("status", "tiny")
    assert (status["state"], status["reason"]) == ("failed", "deadline")
    assert scene.type("wait", "tiny").end() == 3
    logs = scene.type("logs", "tiny", "--since", "10m")
    assert (logs.end(), logs.said) == (0, "")


def test_an_ended_run_is_sent_again_under_its_name(scene: Scene) -> None:
    first = scene.submitted()
    scene.stage.say("Failed", reason="SubmissionFailed", message="head lost")
    assert first.end() == 3
    before = scene.stage.ray_job()
    again = scene.json("submit", "job.yaml", "--kube", "--detach")
    assert before is not None
    assert again["uid"] != before["metadata"]["uid"]
    assert scene.json("status", "tiny")["state"] == "waiting", "the end was the other one's"


def test_stop_of_a_run_that_waits_takes_it_out_of_the_cluster(scene: Scene) -> None:
    command = scene.submitted()
    stop = scene.type("stop", "tiny")
    assert stop.end() == 0, stop.said
    assert "had not begun: its RayJob tiny is deleted" in stop.said
    assert command.end() == 4, "whoever follows learns that it was deleted"
    assert scene.stage.ray_job() is None
    status = scene.json("status", "tiny")
    assert (status["state"], status["reason"]) == ("stopped", "asked")


def test_a_stop_without_the_cluster_is_left_for_the_driver(scene: Scene) -> None:
    scene.submitted().process.kill()
    scene.kubeconfig = None
    stop = scene.type("stop", "tiny")
    assert stop.end() == 0, stop.said
    assert "when its pods come up they find that, and end at once" in stop.said
    wish = json.loads(open_store(scene.s3).get(f"{scene.namespace}/teams/red/runs/tiny/desired.json"))
    assert wish["state"] == "stopped"


def test_a_changed_folder_is_refused_while_the_run_lives(scene: Scene) -> None:
    scene.submitted().process.kill()
    (scene.work / "more.py").write_text("x = 1\n")
    command = scene.type("submit", "job.yaml", "--kube")
    assert command.end() == 2
    assert "the folder has changed since" in command.said
    fresh = scene.type("submit", "job.yaml", "--kube", "--fresh", "--detach")
    assert fresh.end() == 0, fresh.said
    assert "RayJob tiny-2" in fresh.said
    made = scene.server.cluster().get("RayJob", "tiny-2", scene.namespace)
    assert made is not None
    assert "--name tiny-2" in made["spec"]["entrypoint"]


def test_nothing_is_made_by_a_dry_run_or_by_what_is_refused(scene: Scene) -> None:
    dry = scene.type("submit", "job.yaml", "--kube", "--dry-run")
    assert dry.end() == 0, dry.said
    assert "would take it; nothing was made" in dry.said
    text = (scene.work.parent / "pool.yaml").read_text()
    (scene.work.parent / "pool.yaml").write_text(text.replace(f"sha256:{'ab' * 32}", DIGEST_PLACEHOLDER))
    placeholder = scene.type("submit", "job.yaml", "--kube")
    assert placeholder.end() == 3
    assert "is a placeholder" in placeholder.said
    (scene.work.parent / "pool.yaml").write_text(text)
    nowhere = scene.type("submit", "job.yaml", "--kube", "--namespace", "nowhere")
    assert nowhere.end() == 3
    assert "ann may not get rayjobs.ray.io in namespace nowhere" in nowhere.said
    scene.kubeconfig = None
    alone = scene.type("submit", "job.yaml", "--kube")
    assert alone.end() == 2
    assert "no Kubernetes cluster is configured here" in alone.said
    assert scene.server.cluster().list("RayJob", scene.namespace).items == []
    assert list(open_store(scene.s3).list(f"{scene.namespace}/teams/")) == []


def test_render_check_compares_with_the_cluster(scene: Scene) -> None:
    missing = scene.type("render", "job.yaml", "--check")
    assert missing.end() == 1, missing.said
    assert "+kind: RayJob" in missing.said
    scene.submitted().process.kill()
    same = scene.type("render", "job.yaml", "--check")
    assert same.end() == 0, same.said
    change = {"spec": {"suspend": False, "activeDeadlineSeconds": 5}}
    scene.server.cluster().patch("RayJob", "tiny", scene.namespace, change)
    other = scene.type("render", "job.yaml", "--check")
    assert other.end() == 1
    assert "-  activeDeadlineSeconds: 5" in other.said
    assert "suspend" not in other.said


def test_watches_end_with_the_process(scene: Scene) -> None:
    command = scene.submitted()
    command.process.send_signal(signal.SIGTERM)
    wait_for(lambda: command.process.poll() is not None, 10)
    assert command.process.poll() is not None

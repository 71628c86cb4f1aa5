"""A run's way through a cluster, played by hand on an API server without machines: what the operator, the scheduler and
the kubelets would write into its objects.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import CoreV1Api, CustomObjectsApi

from tests.kube.apiserver import ApiServer
from tests.unit.kube.orders import pool
from warpbeam.kube.yaml_text import plain_yaml
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.embedded import ensure_server, home

Object = dict[str, Any]
JOB = """\
schema: warpbeam/job/v1
name: {name}
team: red
model: {{config: {{model_type: qwen2, hidden_size: 64}}, tokenizer: {{train: {{vocab_size: 300}}}}}}
data: {{train: [{{path: "s3://corp/data/*.jsonl"}}], seq_len: 64}}
train: {{method: sft, max_steps: 10, global_batch: 48, lr: 1e-3}}
resources: {{accelerators: 16}}
"""


def folder_of(tmp_path: Path, namespace: str, s3: StorageConfig, name: str = "tiny") -> Path:
    """A user's folder with a job file, and the platform's pool file beside it."""
    storage = {"uri": f"{s3.uri}/{namespace}", "endpoint_url": s3.endpoint_url}
    teams = {"red": {"namespace": namespace, "submitters": ["ml"]}}
    (tmp_path / "pool.yaml").write_text(plain_yaml(pool({"teams": teams}, storage=storage).to_dict()))
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.yaml").write_text(JOB.format(name=name))
    return work


@dataclass
class Command:
    """One `warpbeam ...` in a process of its own.

    Args:
        kubeconfig: None for a machine that has none.
    """

    work: Path
    kubeconfig: Path | None
    words: tuple[str, ...]
    process: subprocess.Popen[str] = field(init=False)
    output: Path = field(init=False)
    notes: Path = field(init=False)

    def __post_init__(self) -> None:
        server = ensure_server(home())
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig or self.work / "none"),
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "WARPBEAM_POOL": str(self.work.parent / "pool.yaml"),
        }
        self.output = self.work.parent / f"output-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "warpbeam.cli.main", *self.words]
        self.notes = self.output.with_suffix(".notes")
        with self.output.open("w") as out, self.notes.open("w") as err:
            self.process = subprocess.Popen(command, cwd=self.work, env=environment, stdout=out, stderr=err, text=True)

    def until(self, words: str, timeout_s: float = 60.0) -> None:
        """Wait until it has said something."""
        wait_for(lambda: words in self.said or self.process.poll() is not None, timeout_s)
        assert words in self.said, f"{words!r} was not said:\n{self.said}"

    def end(self, timeout_s: float = 60.0) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it does not end:\n{self.said}") from None

    @property
    def printed(self) -> str:
        """Its result."""
        return self.output.read_text()

    @property
    def said(self) -> str:
        """Notes, errors and results."""
        return self.notes.read_text() + self.printed


class Stage:
    """Writes what a cluster would write."""

    def __init__(self, server: ApiServer, namespace: str, name: str = "tiny") -> None:
        api = config.new_client_from_config(str(server.kubeconfig("admin")))
        self.server, self.namespace, self.name = server, namespace, name
        self._objects, self._core = CustomObjectsApi(api), CoreV1Api(api)

    def ray_job(self) -> Object | None:
        """As it is now."""
        return self.server.cluster().get("RayJob", self.name, self.namespace)

    def say(self, deployment: str, **status: Any) -> None:
        """The operator's word on the RayJob."""
        body = {"status": {"jobDeploymentStatus": deployment, "rayClusterName": f"{self.name}-abc", **status}}
        where = ("ray.io", "v1", self.namespace, "rayjobs", self.name)
        self._objects.patch_namespaced_custom_object_status(*where, body)

    def pod(self, name: str, **status: Any) -> None:
        """A pod of the run's first worker group, with a status."""
        job = self.ray_job()
        assert job is not None
        template = copy.deepcopy(job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"])
        labels = {**template["metadata"]["labels"], "ray.io/cluster": f"{self.name}-abc", "ray.io/group": "train"}
        template["spec"].pop("priorityClassName", None)
        pod = {"metadata": {"name": name, "labels": labels}, "spec": template["spec"]}
        self._core.create_namespaced_pod(self.namespace, pod)
        self._core.patch_namespaced_pod_status(name, self.namespace, {"status": status})


def wait_for(there: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Poll."""
    deadline = time.monotonic() + timeout_s
    while not there():
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)

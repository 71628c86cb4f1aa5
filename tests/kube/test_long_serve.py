"""What a run exported is served in pods, and answers over HTTP through the cluster's service."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.sandbox import LabError, wait_for
from tests.kube.overlay import opened
from tests.kube.runs import RAY, Tell, rendered, tenancy
from tests.kube.test_long_faults import kubectl
from tests.kube.user import Command
from warpbeam.storage import StorageConfig

pytestmark = pytest.mark.long

NAME = "served"
TOKEN = "a-token-of-the-clients"
ASK = """\
import json, sys, httpx
url, token, model = sys.argv[1:]
body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "1 and 1?"}]}
headers = {"Authorization": f"Bearer {token}"}
answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
print(json.dumps([answer.status_code, answer.text]))
"""


def test_an_export_answers(lab: Laboratory, api: Api, s3: StorageConfig, tmp_path: Path, tell: Tell) -> None:
    shop = sft_job.open_shop(lab, s3)
    serve = {"replicas": 1, "accelerators_per_replica": 0, "token": {"name": "serve", "key": "token"}}
    job, pool = sft_job.write_files(tmp_path, shop, name=NAME, steps=10, serve=serve)
    for words in (("run", "job.yaml", "--yes"), ("export", NAME, "--name", NAME)):
        with Command(lab, shop, job.parent, pool, words) as command:
            assert command.end(240) == 0, command.said[-4000:]
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace:
        sft_job.put_secret(api, shop)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "serve", "namespace": namespace}}
        api.apply({**secret, "stringData": {"token": TOKEN}})
        model = f"s3://warpbeam/teams/{sft_job.TEAM}/models/{NAME}/1"
        documents = rendered(job, pool, "--kind", "rayservice", "--model", model)
        began = time.monotonic()
        for document in documents:
            api.apply(document)
        name = documents[-1]["metadata"]["name"]
        try:
            wait_for("the service", lambda: is_ready(api, namespace, name), 300)
        except LabError as error:
            raise AssertionError(f"{error}: {told(lab, api, namespace, name)}") from error
        tell(f"applied -> ready {time.monotonic() - began:.0f} s")
        url = f"http://{name}-serve-svc.{namespace}.svc.cluster.local:8000"
        began = time.monotonic()
        code, text = ask(lab, url, TOKEN)
        tell(f"an answer over {url} in {time.monotonic() - began:.1f} s: {code}")
        assert code == 200, text
        assert json.loads(text)["choices"][0]["message"]["role"] == "assistant"
        code, _ = ask(lab, url, "another")
        assert code == 401, "who has no token gets nothing"
        api.delete(RAY, "RayService", namespace, name)


def is_ready(api: Api, namespace: str, name: str) -> bool:
    found = api.get(RAY, "RayService", namespace, name) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def told(lab: Laboratory, api: Api, namespace: str, name: str) -> str:
    """What KubeRay and Serve say of it."""
    status = (api.get(RAY, "RayService", namespace, name) or {}).get("status", {})
    said = [json.dumps(status)[:3000]]
    for pod in api.list("v1", "Pod", namespace, "ray.io/node-type"):
        pod_name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        read = "tail -n 15 /tmp/ray/session_latest/logs/serve/*.log"
        said.append(kubectl(lab, "exec", "-n", namespace, pod_name, "-c", container, "--", "bash", "-c", read)[-3000:])
    return "\n".join(said)


def ask(lab: Laboratory, url: str, token: str) -> tuple[int, str]:
    """One question from inside the cluster's network."""
    done = lab.sandbox.run(sys.executable, "-c", ASK, url, token, NAME)
    code, text = json.loads(done.stdout)
    return code, text

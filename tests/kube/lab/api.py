"""The API server as tests speak to it: plain HTTP, so that answers are seen as they are."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from typing import Any

import httpx

Object = dict[str, Any]
FIELD_MANAGER = "lab"
WEBHOOK_S = 60.0
"""A webhook's pod that shares few cores with runs may be late: that is no answer."""
_WEBHOOK = "failed calling webhook"


class Refused(Exception):
    """The API server said no.

    Attributes:
        code: HTTP status.
        message: its words.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Api:
    """One user's connection."""

    def __init__(self, server: str, ca: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=server,
            verify=ssl.create_default_context(cafile=ca),
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
        )
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the API server answers, and says that it is ready."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def request(self, verb: str, path: str, **more: Any) -> Object:
        """Any request.

        Raises:
            Refused: the answer is an error.
        """
        answer = self._http.request(verb, path, **more)
        deadline = time.monotonic() + WEBHOOK_S
        while answer.status_code == 500 and _WEBHOOK in answer.text and time.monotonic() < deadline:
            time.sleep(0.5)
            answer = self._http.request(verb, path, **more)
        content = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
        if answer.is_error:
            raise Refused(answer.status_code, str(content.get("message") or answer.text))
        return dict(content)

    def path(self, api_version: str, kind: str, namespace: str | None = None, name: str = "") -> str:
        """Where objects of a kind are, or one of them."""
        plural, namespaced = self._resource(api_version, kind)
        prefix = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        inside = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{prefix}{inside}/{plural}" + (f"/{name}" if name else "")

    def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._resources:
            prefix = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            for found in self.request("GET", prefix)["resources"]:
                if "/" not in found["name"]:
                    self._resources[api_version, found["kind"]] = (found["name"], found["namespaced"])
        return self._resources[api_version, kind]

    def kinds(self, api_version: str) -> set[str]:
        """Kinds that are served now; of a CRD some moments after it was created."""
        try:
            found = self.request("GET", f"/apis/{api_version}")["resources"]
        except Refused:
            return set()
        return {each["kind"] for each in found}

    def apply(self, document: Mapping[str, Any], *, dry_run: bool = False, subresource: str = "") -> Object:
        """Server-side apply with strict validation, as `kubectl apply --server-side --validate=strict` does it.

        Raises:
            Refused: it is not taken.
        """
        metadata = document["metadata"]
        namespace = metadata.get("namespace", "default")
        path = self.path(document["apiVersion"], document["kind"], namespace, metadata["name"])
        asked = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true"}
        return self.request(
            "PATCH",
            path + (f"/{subresource}" if subresource else ""),
            params=asked | ({"dryRun": "All"} if dry_run else {}),
            content=json.dumps(document),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )

    def create(self, document: Mapping[str, Any]) -> Object:
        """Make a new object: much quicker than `apply` where it is as large as a CRD.

        Raises:
            Refused: it is not taken, or is there already.
        """
        path = self.path(document["apiVersion"], document["kind"], document["metadata"].get("namespace", "default"))
        return self.request("POST", path, params={"fieldManager": FIELD_MANAGER}, json=dict(document))

    def patch(self, path: str, content: Any, *, kind: str = "merge") -> Object:
        """Change an object: kind merge, json or strategic-merge."""
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        return self.request("PATCH", path, content=json.dumps(content), headers=headers)

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object, or None."""
        try:
            return self.request("GET", self.path(api_version, kind, namespace, name))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str | None = None, labels: str = "") -> list[Object]:
        """Objects of a kind, of one namespace or of all."""
        params = {"labelSelector": labels} if labels else {}
        items: list[Object] = self.request("GET", self.path(api_version, kind, namespace), params=params)["items"]
        return items

    def delete(
        self, api_version: str, kind: str, namespace: str | None, name: str, *, grace_s: int | None = None
    ) -> None:
        """Delete it and, in the background, what it owns; nothing where it is not there."""
        path = self.path(api_version, kind, namespace, name)
        grace = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        try:
            self.request("DELETE", path, params={"propagationPolicy": "Background", **grace})
        except Refused as refused:
            if refused.code != 404:
                raise

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has printed."""
        path = self.path("v1", "Pod", namespace, pod)
        answer = self._http.get(f"{path}/log", params={"container": container})
        return answer.text

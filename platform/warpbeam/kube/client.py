"""One API server as one user: the few requests that Warpbeam makes, over the official client (docs/adr/0016).

The official package finds the cluster, its certificates and the login (kubeconfig, exec plugins, a pod's own token) and
moves the bytes; objects stay plain JSON. This is the only module that imports it. Nothing here waits for long: an
answer comes within seconds, or an error that says why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import urllib3
from kubernetes import client as official
from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed
from yaml import YAMLError  # what the official package reads kubeconfigs with

from warpbeam.errors import PlatformError, WarpbeamError
from warpbeam.kube.client_errors import Asked, Dropped, no_kubeconfig, refusal, unreachable
from warpbeam.kube.kinds import KINDS

Object = dict[str, Any]

FIELD_MANAGER: Final = "warpbeam"
CONNECT_S: Final = 5.0
READ_S: Final = 20.0
WATCH_S: Final = 240
"""The server ends a watch after so long; nothing heard for a little longer is a dead connection."""
PAGE: Final = 500
_RETRY_S: Final = 0.5
_POD_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class Event(NamedTuple):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Object


@dataclass(frozen=True)
class Listing:
    """Objects of one kind at one moment; a watch goes on from `version`."""

    items: list[Object]
    version: str


class Cluster:
    """The requests. Objects go in and come out as the API server's own JSON.

    Args:
        api: the official client, configured.
        namespace: where requests go that name none.
        context: what the kubeconfig calls it; empty inside a pod.
    """

    def __init__(self, api: official.ApiClient, namespace: str = "default", context: str = "") -> None:
        self._api = api
        self.namespace = namespace
        self.context = context
        self.server: str = api.configuration.host

    @classmethod
    def connect(cls, context: str | None = None) -> Cluster:
        """The cluster of the kubeconfig, or the one that this pod is in where there is no kubeconfig.

        Raises:
            UserError: there is neither, or no such context.
        """
        path = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        there = any(os.path.exists(part) for part in path.split(os.pathsep) if part)
        if context is None and not there and "KUBERNETES_SERVICE_HOST" in os.environ:
            return cls.inside()
        try:
            contexts, current = config.list_kube_config_contexts(path)
            chosen = next((found for found in contexts if found["name"] == context), None) if context else current
            if chosen is None:
                raise no_kubeconfig(f"{context}", [found["name"] for found in contexts])
            settings = official.Configuration()
            config.load_kube_config(path, chosen["name"], settings)
        except (ConfigException, YAMLError, OSError, KeyError, TypeError) as error:
            raise no_kubeconfig(str(error)) from error
        namespace = chosen.get("context", {}).get("namespace") or "default"
        return cls(_api(settings), namespace, chosen["name"])

    @classmethod
    def inside(cls) -> Cluster:
        """The cluster that this pod is in, as its service account.

        Raises:
            PlatformError: this is no pod, or it has no token.
        """
        settings = official.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
            with open(_POD_NAMESPACE, encoding="utf-8") as file:
                namespace = file.read().strip()
        except (ConfigException, OSError) as error:
            raise PlatformError(
                "this process is in no pod that may ask Kubernetes",
                why=str(error),
                fix="its pod needs `automountServiceAccountToken: true`",
                reason="no_pod_token",
            ) from error
        return cls(_api(settings), namespace)

    # ---- objects

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """One object; None where there is none of this name.

        Raises:
            PlatformError: the cluster does not know this kind; no right to read it.
        """
        asked = Asked("get", KINDS[kind], namespace, name)
        try:
            return self._json("GET", asked)
        except WarpbeamError as error:
            if error.reason == "kube_missing":
                return None
            raise

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Listing:
        """All objects, of all namespaces where none is named, fetched in pages.

        Args:
            labels, fields: selectors as kubectl takes them.
        """
        asked = Asked("list", KINDS[kind], namespace)
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE), "continue": ""}
        items: list[Object] = []
        while True:
            page = self._json("GET", asked, query)
            items += [{"kind": kind, **item} for item in page.get("items", [])]
            metadata = page.get("metadata", {})
            query["continue"] = metadata.get("continue", "")
            if not query["continue"]:
                return Listing(items, str(metadata.get("resourceVersion", "")))

    def apply(self, document: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Object:
        """Server-side apply with strict field validation.

        Args:
            dry_run: everything is checked, admission included, and nothing is kept.
            force: take over fields that another manager holds.
        """
        resource, metadata = KINDS[document["kind"]], document["metadata"]
        asked = Asked("patch", resource, metadata.get("namespace", ""), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true" if force else ""}
        query["dryRun"] = "All" if dry_run else ""
        return self._json("PATCH", asked, query, document, "application/apply-patch+yaml")

    def create(self, document: Mapping[str, Any]) -> Object:
        """Make an object that must not be there yet."""
        metadata = document["metadata"]
        asked = Asked("create", KINDS[document["kind"]], metadata.get("namespace", ""), metadata["name"])
        return self._json("POST", asked, {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}, document)

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> Object:
        """Merge patch. With `metadata.resourceVersion` in it, only that version is changed (`Busy` otherwise)."""
        asked = Asked("patch", KINDS[kind], namespace, name)
        return self._json("PATCH", asked, {"fieldManager": FIELD_MANAGER}, change, "application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> bool:
        """Delete an object and, in the background, what it owns; False where there was none.

        Args:
            uid: only the object that has it: another of the same name stays.
        """
        asked = Asked("delete", KINDS[kind], namespace, name)
        options: Object = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        try:
            self._json("DELETE", asked, {}, options)
        except WarpbeamError as error:
            if error.reason == "kube_missing":
                return False
            raise
        return True

    # ---- streams

    def watch(
        self, kind: str, namespace: str, version: str, *, labels: str = "", fields: str = "", timeout_s: int = WATCH_S
    ) -> Iterator[Event]:
        """Changes since `version`, until the server ends the stream. `watch.follow` goes on after that.

        Raises:
            Gone: the server has forgotten that version.
            Dropped: the connection broke.
        """
        asked = Asked("watch", KINDS[kind], namespace)
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"labelSelector": labels, "fieldSelector": fields, "timeoutSeconds": str(timeout_s)}
        answer = self._send("GET", asked, query, read_s=timeout_s + 30)
        for line in self._lines(answer):
            found = json.loads(line)
            if found["type"] == "ERROR":
                status = found["object"]
                raise refusal(int(status.get("code", 500)), json.dumps(status), asked, self.server)
            yield Event(found["type"], {"kind": kind, **found["object"]})

    def logs(self, pod: str, namespace: str, container: str, *, follow: bool, since: str = "") -> Iterator[bytes]:
        """Lines of a container, each with its time in front; `watch.follow_log` goes on where one stream breaks off.

        Args:
            since: only lines of this time (RFC 3339) or later.
        """
        asked = Asked("get", KINDS["Pod"], namespace, pod)
        query = {"container": container, "follow": "true" if follow else "", "timestamps": "true", "sinceTime": since}
        yield from self._lines(self._send("GET", asked, query, sub="log", read_s=WATCH_S if follow else READ_S))

    # ---- one request

    def _json(
        self,
        method: str,
        asked: Asked,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Object:
        """One request and its whole answer; asked a second time where the connection failed and asking twice is the
        same as asking once."""
        attempts = 1 if method == "POST" else 2
        for attempt in Retrying(
            retry=retry_if_exception_type(Dropped),
            stop=stop_after_attempt(attempts),
            wait=wait_fixed(_RETRY_S),
            reraise=True,
        ):
            with attempt:
                answer = self._send(method, asked, query or {}, body=body, content=content)
                with self._failing_as_dropped():
                    found: Object = json.loads(answer.data)
        return found

    def _send(
        self,
        method: str,
        asked: Asked,
        query: Mapping[str, str],
        *,
        sub: str = "",
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        read_s: float = READ_S,
    ) -> urllib3.BaseHTTPResponse:
        named = "" if method == "POST" else asked.name
        try:
            with self._failing_as_dropped():
                answer: urllib3.BaseHTTPResponse = self._api.call_api(
                    asked.resource.path(asked.namespace, named, sub),
                    method,
                    query_params=[(key, value) for key, value in query.items() if value],
                    header_params={"Accept": "application/json", "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _return_http_data_only=True,
                    _request_timeout=(CONNECT_S, read_s),
                )
        except ApiException as error:
            if not error.status:
                raise unreachable(self.server, str(error.reason)) from error
            raise refusal(error.status, error.body, asked, self.server) from error
        return answer

    def _lines(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        rest = b""
        try:
            with self._failing_as_dropped():
                for piece in answer.stream(1 << 16, decode_content=False):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from lines
            if rest:
                yield rest
        finally:
            answer.close()

    def _failing_as_dropped(self) -> _Dropping:
        return _Dropping(self.server)


class _Dropping:
    """What the network does, as our own error."""

    def __init__(self, server: str) -> None:
        self._server = server

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (urllib3.exceptions.HTTPError, OSError)):
            raise unreachable(self._server, str(error) or type(error).__name__) from error


def _api(settings: official.Configuration) -> official.ApiClient:
    settings.retries = False  # how often to ask again is decided here, where it is known whether that is harmless
    return official.ApiClient(configuration=settings)

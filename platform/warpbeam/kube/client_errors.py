"""What an API server answered when it did not do what was asked, in words with the next command. Pure.

The input is the answer as it came: HTTP status and the `Status` object in its body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.kube.kinds import Resource

KUBERAY: Final = "1.6.2"
_INSTALL: Final[Mapping[str, str]] = {
    "ray.io": "install the KubeRay operator: `helm install kuberay-operator kuberay/kuberay-operator "
    f"--version {KUBERAY} -n kuberay-system --create-namespace`",
    "kueue.x-k8s.io": "install Kueue, or write another `gang:` in the pool file",
}
_FORBIDDEN: Final = re.compile(r'User "([^"]+)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"')
_UNKNOWN_FIELDS: Final = re.compile(r'(?:unknown field "([^"]+)"|(\.[\w.\[\]"-]+): field not declared in schema)')
_LOGIN: Final = (
    "log in again as your cluster wants it (`kubectl get pods` shows whether it worked), then the same command"
)


@dataclass(frozen=True)
class Asked:
    """What the request was about."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.resource.kind} {self.name}" if self.name else self.resource.plural
        return named + (f" in namespace {self.namespace}" if self.namespace else "")


class Gone(InfraError):
    """A watch asked for changes that the server has forgotten (410): list again."""

    default_reason = "watch_expired"


class Dropped(InfraError):
    """The connection failed or broke off: the server may be back in a moment."""

    default_reason = "kube_unreachable"


class Busy(Dropped):
    """The server answers that it cannot answer now (429, 5xx)."""

    default_reason = "kube_busy"


def status_of(body: bytes | str | None) -> Mapping[str, Any]:
    """The `Status` object of a refusal; one made of the text where a proxy answered instead."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text.strip()[:500]}


def refusal(code: int, body: bytes | str | None, asked: Asked, server: str = "") -> WarpbeamError:
    """The error for an answer that is none."""
    status = status_of(body)
    message = " ".join(str(status.get("message", "")).split())
    if code == 401:
        return _not_logged_in(server, message)
    if code == 403:
        return _forbidden(message, asked, server)
    if code == 404:
        return _missing(message, asked)
    if code == 409:
        return _conflict(str(status.get("reason", "")), message, asked)
    if code == 410:
        return Gone(f"the server has forgotten the changes of {asked}", why=message)
    if code in (400, 422):
        return _invalid(message, asked)
    if code == 429 or code >= 500:
        return _failed(code, message, asked, server)
    return PlatformError(
        f"the API server answered HTTP {code} to {asked.verb} {asked}", why=message, reason="kube_refused"
    )


def unreachable(server: str, cause: str) -> Dropped:
    """Nobody answers there."""
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        why = f"its certificate is not one that your kubeconfig trusts: {cause}"
        return Dropped(
            f"the API server {server} cannot be trusted", why=why, fix="fetch your kubeconfig anew", reason="kube_tls"
        )
    return Dropped(
        f"the API server {server} cannot be reached",
        why=cause,
        fix="check the network or VPN, and that the context is the one you mean: `kubectl config get-contexts`",
    )


def no_kubeconfig(why: str, contexts: list[str] | None = None) -> UserError:
    """There is nothing that says where the cluster is, or not by that name."""
    if contexts:
        return UserError(
            f"there is no such Kubernetes context: {why}",
            fix=f"write one of these: --context {' | '.join(contexts)}",
            reason="no_context",
        )
    return UserError(
        "no Kubernetes cluster is configured here",
        why=why,
        fix="get a kubeconfig from your platform team, into ~/.kube/config or a file that KUBECONFIG names",
        reason="no_kubeconfig",
    )


def _not_logged_in(server: str, message: str) -> UserError:
    return UserError(
        f"the API server{f' {server}' if server else ''} does not accept your login: it has expired, or never was one",
        why=message,
        fix=_LOGIN,
        reason="kube_login",
    )


def _forbidden(message: str, asked: Asked, server: str) -> WarpbeamError:
    found = _FORBIDDEN.search(message)
    if found is not None:
        user, verb, plural, group = found.groups()
        if user == "system:anonymous":
            return _not_logged_in(server, message)
        where = f"in namespace {asked.namespace}" if asked.namespace else "in the whole cluster"
        resource = f"{plural}.{group}" if group else plural
        return PlatformError(
            f"{user} may not {verb} {resource} {where}",
            fix="ask the platform team for that right: `warpbeam render JOB.yaml --pool POOL --kind tenancy` has the "
            "Role `warpbeam-submitter`, and the pool's `submitters` name the groups that have it",
            reason="kube_forbidden",
        )
    if "exceeded quota" in message:
        return PlatformError(
            f"the namespace's quota leaves no room for {asked}", why=message, reason="kube_quota", fix=_ask_platform()
        )
    if "because it is being terminated" in message:
        return PlatformError(
            f"namespace {asked.namespace} is being deleted", why=message, fix=_ask_platform(), reason="no_namespace"
        )
    if "escalating" in message or "attempting to grant RBAC permissions" in message:
        return PlatformError(
            f"nobody may give rights that they do not have: {asked}",
            why=message,
            fix="whoever submits needs the rights of the Role that comes with a run: Role `warpbeam-submitter`",
            reason="kube_forbidden",
        )
    return PlatformError(f"{asked} is refused", why=message, fix=_ask_platform(), reason="kube_denied")


def _missing(message: str, asked: Asked) -> WarpbeamError:
    if found := re.search(r'namespaces "([^"]+)" not found', message):
        return PlatformError(
            f"there is no namespace {found[1]} in this cluster",
            fix="the platform team makes it: `warpbeam render JOB.yaml --pool POOL --kind tenancy | kubectl apply "
            "--server-side -f -`; or name another: --namespace, --context",
            reason="no_namespace",
        )
    if "could not find the requested resource" in message or message.startswith("404 page not found"):
        group = asked.resource.group
        return PlatformError(
            f"this cluster does not know {asked.resource.kind} ({group}/{asked.resource.version})",
            why=f"nothing has installed {asked.resource.full_name}, or only in another version",
            fix=_INSTALL.get(group, "ask the platform team, or choose another --context"),
            reason="no_crds",
        )
    return PlatformError(f"there is no {asked}", why=message, reason="kube_missing")


def _conflict(reason: str, message: str, asked: Asked) -> WarpbeamError:
    if found := re.findall(r'conflict with "([^"]+)"[^:]*: (\S+)', message):
        who = ", ".join(f"{field.rstrip(',')} by {manager}" for manager, field in found[:3])
        return UserError(
            f"{asked} belongs in part to somebody else: {who}",
            why=message,
            fix=f"see who wrote it: `kubectl get {asked.resource.plural} {asked.name} -o yaml --show-managed-fields`",
            reason="kube_conflict",
        )
    if reason == "AlreadyExists" and "being deleted" not in message:
        return UserError(
            f"{asked} exists already", fix="use another `name:` in the job file, or --fresh", reason="kube_exists"
        )
    return Busy(f"{asked} was changed or is being deleted at this moment", why=message, reason="kube_changed")


def _invalid(message: str, asked: Asked) -> WarpbeamError:
    if "denied request" in message:
        why = message.partition("denied request: ")[2] or message
        return PlatformError(
            f"a policy of the cluster refuses {asked}: {why}",
            fix="render it from the platform's pool file; if it is, the policy and the pool file differ",
            reason="kube_policy",
        )
    unknown = [one or other for one, other in _UNKNOWN_FIELDS.findall(message)]
    if unknown:
        fields = ", ".join(sorted({field.lstrip(".") for field in unknown})[:5])
        owner = asked.resource.group == "ray.io"
        return PlatformError(
            f"the cluster's {asked.resource.kind} has no {fields}",
            why="its KubeRay is older than the manifests want" if owner else message,
            fix=f"update KubeRay's CRDs and operator to {KUBERAY} or newer" if owner else _ask_platform(),
            reason="operator_too_old" if owner else "kube_invalid",
        )
    return PlatformError(
        f"the API server does not take {asked}", why=message, fix=_ask_platform(), reason="kube_invalid"
    )


def _failed(code: int, message: str, asked: Asked, server: str) -> WarpbeamError:
    if "failed calling webhook" in message or "no endpoints available" in message:
        return Busy(
            f"a webhook of the cluster does not answer, so {asked} was not taken",
            why=message,
            fix="a rollout passes in a minute; else the platform team looks at that webhook's pods",
            reason="kube_webhook",
        )
    if "failed to create typed patch object" in message:  # a 500, although it is the manifest that is wrong
        return _invalid(message, asked)
    return Busy(
        f"the API server{f' {server}' if server else ''} cannot answer now (HTTP {code})",
        why=message,
        fix="run the command again in a moment",
    )


def _ask_platform() -> str:
    return "show this to the platform team"

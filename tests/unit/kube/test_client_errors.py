"""Every refusal of an API server in words. Messages are those of an API server 1.36.3, where they were seen."""

from __future__ import annotations

import json

import pytest

from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.kube.client_errors import Asked, Busy, Dropped, Gone, no_kubeconfig, refusal, unreachable
from warpbeam.kube.kinds import KINDS

JOB = Asked("patch", KINDS["RayJob"], "team-red", "tiny")
FORBIDDEN = (
    'rayjobs.ray.io "tiny" is forbidden: User "ann" cannot patch resource "rayjobs" in API group "ray.io" '
    'in the namespace "team-red"'
)
ANONYMOUS = FORBIDDEN.replace('"ann"', '"system:anonymous"')
ESCALATION = (
    'roles.rbac.authorization.k8s.io "tiny-driver" is forbidden: user "ann" (groups=["ml"]) is attempting to grant '
    'RBAC permissions not currently held: {APIGroups:["ray.io"], Resources:["rayjobs"], Verbs:["get"]}'
)
CASES: dict[str, tuple[int, str, str, type[WarpbeamError], str, str]] = {
    "expired token": (401, "Unauthorized", "Unauthorized", UserError, "kube_login", "log in again"),
    "not logged in": (403, ANONYMOUS, "Forbidden", UserError, "kube_login", "log in again"),
    "no right": (403, FORBIDDEN, "Forbidden", PlatformError, "kube_forbidden", "ann may not patch rayjobs.ray.io in"),
    "rights that one lacks": (403, ESCALATION, "Forbidden", PlatformError, "kube_forbidden", "nobody may give rights"),
    "no CRDs": (
        404,
        "the server could not find the requested resource",
        "NotFound",
        PlatformError,
        "no_crds",
        "helm install kuberay-operator",
    ),
    "no namespace": (
        404,
        'namespaces "team-red" not found',
        "NotFound",
        PlatformError,
        "no_namespace",
        "--kind tenancy",
    ),
    "nothing there": (
        404,
        'rayjobs.ray.io "tiny" not found',
        "NotFound",
        PlatformError,
        "kube_missing",
        "no RayJob tiny",
    ),
    "somebody else's field": (
        409,
        'Apply failed with 1 conflict: conflict with "kubectl-edit" using ray.io/v1: .spec.suspend',
        "Conflict",
        UserError,
        "kube_conflict",
        ".spec.suspend by kubectl-edit",
    ),
    "exists": (409, 'rayjobs.ray.io "tiny" already exists', "AlreadyExists", UserError, "kube_exists", "--fresh"),
    "changed meanwhile": (409, "the object has been modified", "Conflict", Busy, "kube_changed", "at this moment"),
    "forgotten changes": (410, "too old resource version: 1 (9)", "Expired", Gone, "watch_expired", "forgotten"),
    "old operator": (
        500,
        "failed to create typed patch object (team-red/tiny; ray.io/v1, Kind=RayJob): "
        ".spec.preRunningDeadlineSeconds: field not declared in schema",
        "InternalError",
        PlatformError,
        "operator_too_old",
        "has no spec.preRunningDeadlineSeconds",
    ),
    "unknown field": (
        400,
        'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown field "spec.suspendd"',
        "BadRequest",
        PlatformError,
        "operator_too_old",
        "has no spec.suspendd",
    ),
    "policy": (
        422,
        "rayjobs.ray.io \"tiny\" is forbidden: ValidatingAdmissionPolicy 'q' with binding 'q' denied request: "
        "the label queue must be red",
        "Invalid",
        PlatformError,
        "kube_policy",
        "the label queue must be red",
    ),
    "wrong value": (422, "spec.backoffLimit: Invalid value", "Invalid", PlatformError, "kube_invalid", "does not take"),
    "quota": (403, "exceeded quota: warpbeam", "Forbidden", PlatformError, "kube_quota", "leaves no room"),
    "webhook": (500, "failed calling webhook mrayjob", "InternalError", Busy, "kube_webhook", "does not answer"),
    "overloaded": (429, "too many requests", "TooManyRequests", Busy, "kube_busy", "cannot answer now"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_refusal_has_its_words(name: str) -> None:
    code, message, reason, kind, ours, words = CASES[name]
    body = json.dumps({"kind": "Status", "code": code, "message": message, "reason": reason})
    error = refusal(code, body, JOB, "https://api")
    assert type(error) is kind, error
    assert error.reason == ours
    assert words in str(error)


def test_what_a_proxy_says_is_no_status() -> None:
    error = refusal(502, b"<html>bad gateway</html>", JOB, "https://api")
    assert isinstance(error, InfraError)
    assert "bad gateway" in error.why


def test_nobody_there_and_nobody_to_trust() -> None:
    assert isinstance(unreachable("https://api", "timed out"), Dropped)
    assert unreachable("https://api", "timed out").exit_code == 3
    assert unreachable("https://api", "[SSL: CERTIFICATE_VERIFY_FAILED]").reason == "kube_tls"


def test_no_kubeconfig_and_no_such_context() -> None:
    assert no_kubeconfig("no file").reason == "no_kubeconfig"
    assert "--context dev | prod" in no_kubeconfig("'x'", ["dev", "prod"]).fix

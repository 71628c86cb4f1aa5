"""What would change in a cluster if these manifests were applied: the object that is there beside the one that a
dry-run apply gives. Pure.

The server fills in defaults and keeps what others wrote, so a manifest and a live object never look alike; two of its
own answers do.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from typing import Any, Final

from warpbeam.kube.yaml_text import plain_yaml

Object = Mapping[str, Any]

_SERVERS_OWN: Final = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
HANDED_OVER: Final[Mapping[str, tuple[str, ...]]] = {
    "RayJob": ("suspend", "backoffLimit"),
    "RayCluster": ("suspend",),
}
"""Fields of `spec` that others set once the object is there: whoever lets gangs in, and the run's driver."""


def to_apply(document: Object, live: Object | None) -> dict[str, Any]:
    """The manifest without what was handed over, where the object is there already."""
    found: dict[str, Any] = copy.deepcopy(dict(document))
    if live is not None:
        for name in HANDED_OVER.get(document["kind"], ()):
            found["spec"].pop(name, None)
    return found


def differences(live: Object | None, after: Object) -> list[str]:
    """A unified diff of one object; empty where nothing would change.

    Args:
        live: None where it is not there.
        after: the answer to a dry-run apply.
    """
    kind, name = after["kind"], after["metadata"]["name"]
    before = _text(live) if live is not None else ""
    lines = difflib.unified_diff(
        before.splitlines(), _text(after).splitlines(), f"live/{kind}/{name}", f"rendered/{kind}/{name}", lineterm=""
    )
    return list(lines)


def _text(found: Object) -> str:
    """Without what the server keeps for itself, keys sorted: order means nothing there."""
    kept = {key: value for key, value in found.items() if key != "status"}
    kept["metadata"] = {key: value for key, value in found["metadata"].items() if key not in _SERVERS_OWN}
    for name in HANDED_OVER.get(found["kind"], ()):
        if isinstance(kept.get("spec"), Mapping) and name in kept["spec"]:
            kept["spec"] = {key: value for key, value in kept["spec"].items() if key != name}
    return plain_yaml(_sorted(kept))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(inner) for inner in value]
    return value

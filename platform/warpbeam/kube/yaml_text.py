"""Manifests as YAML that people review: the same bytes for the same content, comments where a reader would ask why.

A comment stands at the first place of its key in a document, so that it is read once.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString

# The end of a key's path, without list positions -> why it is there.
WHY: Final[Mapping[str, str]] = {
    "metadata.labels.warpbeam.dev/run": "the run: its name in the record, whatever this object had to be called",
    "metadata.labels.kueue.x-k8s.io/queue-name": "Kueue counts head, submitter and workers against this queue",
    "annotations.ray.io/disable-provisioned-head-restart": "a new head would not know the job",
    "spec.suspend": "no pods yet: whoever holds gangs together sets it to false when all of it fits",
    "jobTemplate.suspend": "no pods yet: whoever holds gangs together sets it to false when all of it fits",
    "submissionMode": "a lost head ends the submitter, and that ends the attempt (docs/adr/0013)",
    "spec.submitterConfig.backoffLimit": "a new submitter finds the job by its id and reads on",
    "jobTemplate.submitterConfig.backoffLimit": "a head that comes back does not know the job: it is not sent again",
    "spec.backoffLimit": "the driver lends the retries of the annotation while it lives (docs/adr/0017)",
    "jobTemplate.backoffLimit": "attempts on a new cluster; the run goes on from its newest checkpoint",
    "preRunningDeadlineSeconds": "not running by then: everything is given back",
    "activeDeadlineSeconds": "the longest that one attempt may hold its accelerators",
    "shutdownAfterJobFinishes": "every end gives the accelerators back",
    "runtimeEnvYAML": "where the submitter's first container puts the bundle, checked against its digest",
    "enableInTreeAutoscaling": "Ray's autoscaler asks for workers where minReplicas is below maxReplicas",
    "gcsFaultToleranceOptions": "a new head finds the cluster's state there",
    "headGroupSpec.rayStartParams.num-cpus": "the head runs no tasks",
    "headGroupSpec.template.spec.restartPolicy": "a head that restarts in place has forgotten the job",
    "template.spec.tolerations": "taints of the nodes; the last two give up a pod on a node that is lost",
    "template.spec.terminationGracePeriodSeconds": "long enough for the emergency save that preStop waits for",
    "containers.lifecycle": "tells the run that this pod must go, and keeps it until the save is done",
}

_PLAIN: Final = re.compile(r"[A-Za-z/].*")
_YAML_1_1: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""kubectl still reads these as truth values and nothing, so as texts they are quoted."""


def plain_yaml(content: Mapping[str, Any]) -> str:
    """One document without comments."""
    return _dump(_commented(content, (), set(WHY)))


def explained(documents: Sequence[Mapping[str, Any]], header: Sequence[str]) -> str:
    """All documents in their order.

    Args:
        header: lines that stand at the top as comments.
    """
    text = "".join(f"# {line}\n" if line else "#\n" for line in header)
    for document in documents:
        told: set[str] = set()
        text += "---\n" + _dump(_commented(document, (), told))
    return text


def _dump(content: Any) -> str:
    writer = YAML()
    writer.width = 10_000  # a line is a value: no folding that moves with its length
    writer.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    writer.dump(content, out)
    return out.getvalue()


def _commented(value: Any, path: tuple[str, ...], told: set[str]) -> Any:
    """The same content as ruamel's own containers, which carry comments. `told`: what was explained already."""
    if isinstance(value, Mapping):
        found = CommentedMap()
        for key, inner in value.items():
            where = (*path, str(key))
            found[_text(key)] = _commented(inner, where, told)
            if (why := _why(where, told)) is not None:
                found.yaml_set_comment_before_after_key(key, before=why, indent=_column(where))
        return found
    if isinstance(value, (list, tuple)):
        return CommentedSeq([_commented(inner, (*path, "-"), told) for inner in value])
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """The text in a style that every YAML reads as a text."""
    styled: str = value
    if "\n" in value:
        styled = LiteralScalarString(value)
    elif not _PLAIN.fullmatch(value) or value.lower() in _YAML_1_1:
        styled = SingleQuotedScalarString(value)
    return styled


def _why(path: tuple[str, ...], told: set[str]) -> str | None:
    dotted = ".".join(part for part in path if part != "-")
    for end, why in WHY.items():
        if end not in told and (dotted == end or dotted.endswith(f".{end}")):
            told.add(end)
            return why
    return None


def _column(path: tuple[str, ...]) -> int:
    """Where the key stands: two for each mapping around it, and two for each list's dash."""
    return 2 * (len(path) - 1)

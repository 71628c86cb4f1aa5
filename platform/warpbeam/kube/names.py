"""Names and labels of what a run becomes in a cluster.

A run's name may have 63 characters. KubeRay appends to its objects' names to make those of clusters, services and pods,
and refuses a RayJob beyond 47 only after it was accepted; so what does not fit is shortened here, with a digest that
keeps two alike names apart. A RayJob, a RayCluster and a RayService of one name would fight for one head service: the
latter two have a suffix. The run itself is always named by its label.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

DOMAIN: Final = "warpbeam.dev"
RUN: Final = f"{DOMAIN}/run"
TEAM: Final = f"{DOMAIN}/team"
POOL: Final = f"{DOMAIN}/pool"
ROLE: Final = f"{DOMAIN}/role"
BUNDLE: Final = f"{DOMAIN}/bundle"
JOB_DIGEST: Final = f"{DOMAIN}/job-digest"
POOL_DIGEST: Final = f"{DOMAIN}/pool-digest"
RETRIES: Final = f"{DOMAIN}/retries"
"""Annotation: what `backoffLimit` becomes while the driver lives."""
GATE: Final = f"{DOMAIN}/gate"
"""Annotation: what the gate says of a run that waits."""
RELEASED: Final = f"{DOMAIN}/released-at"
"""Annotation: when the gate let it in, RFC 3339."""
GIVEN_BACK: Final = f"{DOMAIN}/given-back-at"
"""Annotation: when the gate took it out for good, RFC 3339."""
RAY_JOB_ENV: Final = "WARPBEAM_RAYJOB"
"""In the head's pod: the RayJob that its driver belongs to."""

MOST_CHARACTERS: Final = 47
"""Of a RayJob, RayService or RayCluster: KubeRay's 53 less the 6 of a generated cluster's name."""
MOST_IN_CRON_JOB: Final = MOST_CHARACTERS - 6
"""A RayCronJob's RayJobs have 6 characters more."""
CLUSTER: Final = "-cluster"
SERVE: Final = "-serve"
SUFFIXES: Final = (CLUSTER, SERVE)
_DIGEST_CHARACTERS: Final = 8
_DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def object_name(run: str, *, suffix: str = "", most: int = MOST_CHARACTERS) -> str:
    """The run's name and its kind's suffix where KubeRay takes that, else a shorter one that no other run has."""
    name = run + suffix
    taken = not suffix and run.endswith(SUFFIXES)  # another run's RayCluster or RayService may be called so
    if len(name) <= most and _DNS_LABEL.fullmatch(name) and not taken:
        return name
    digest = hashlib.sha256(f"{run} {suffix}".encode()).hexdigest()[:_DIGEST_CHARACTERS]
    start = name if run[0].isalpha() else f"run-{name}"
    return f"{start[: most - _DIGEST_CHARACTERS - 1].rstrip('-')}-{digest}"


def pool_config_name(pool: str) -> str:
    """The ConfigMap with the platform's copy of the pool file."""
    return f"warpbeam-pool-{pool}"

"""What is to be rendered: a plan, the job and pool that it was made from, and what the command line added.

job + pool -> plan -> Order -> one dict a manifest -> KubeRay's and Kueue's rules -> YAML with comments
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from warpbeam.errors import PlatformError
from warpbeam.job import Job, Range
from warpbeam.kube import names
from warpbeam.plan.plan import Plan
from warpbeam.pool import Image, Pool
from warpbeam.pool_kubernetes import Kubernetes, Team


class Kind(StrEnum):
    """What can be rendered."""

    RAYJOB = "rayjob"
    RAYCLUSTER = "raycluster"
    RAYSERVICE = "rayservice"
    RAYCRONJOB = "raycronjob"
    TENANCY = "tenancy"


@dataclass(frozen=True)
class BundleRef:
    """A packed working folder in the store.

    Args:
        uri: where it is.
        digest: sha256 of its content, as `launch.bundle` counts it.
    """

    uri: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that a manifest is a function of.

    Args:
        rigid: the command line named a size, which an elastic job then keeps.
        entrypoint: the driver's command, relative to the bundle's root; for RayJobs.
        schedule: cron expression, for a RayCronJob.
        model: address of the exported model, for a RayService.

    Raises:
        PlatformError: the pool has no `kubernetes:` section, or does not know the team.
    """

    kind: Kind
    plan: Plan
    job: Job
    pool: Pool
    job_digest: str = ""
    pool_digest: str = ""
    rigid: bool = False
    entrypoint: str = ""
    bundle: BundleRef | None = None
    schedule: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        if self.pool.kubernetes is None or self.pool.image is None:
            raise PlatformError(
                f"the pool `{self.pool.name}` says nothing about Kubernetes",
                fix="write its `kubernetes:` section (docs/kubernetes.md), or choose another pool (--pool)",
                reason="no_kubernetes",
            )
        if self.job.team not in self.pool.kubernetes.teams:
            raise PlatformError(
                f"the pool `{self.pool.name}` has no place for team `{self.job.team}`",
                why=f"it knows: {', '.join(self.pool.kubernetes.teams)}",
                fix=f"in the pool file, under kubernetes.teams: `{self.job.team}: {{namespace: ...}}`",
                reason="unknown_team",
            )

    @property
    def kubernetes(self) -> Kubernetes:
        """The pool's section."""
        assert self.pool.kubernetes is not None
        return self.pool.kubernetes

    @property
    def image(self) -> Image:
        """What pods run."""
        assert self.pool.image is not None
        return self.pool.image

    @property
    def team(self) -> Team:
        """Where the job's team runs."""
        return self.kubernetes.teams[self.job.team]

    @property
    def name(self) -> str:
        """Of the rendered object."""
        suffix = {Kind.RAYCLUSTER: names.CLUSTER, Kind.RAYSERVICE: names.SERVE}.get(self.kind, "")
        most = names.MOST_IN_CRON_JOB if self.kind is Kind.RAYCRONJOB else names.MOST_CHARACTERS
        return names.object_name(self.job.name, suffix=suffix, most=most)

    @property
    def labels(self) -> dict[str, str]:
        """Of everything that belongs to the run, pods included."""
        return {names.RUN: self.job.name, names.TEAM: self.job.team, names.POOL: self.pool.name}

    @property
    def may_scale(self) -> bool:
        """Pods may come and go: Kueue refuses Ray's autoscaler without its gate, and a slice has all of its hosts."""
        takes_autoscaler = self.kubernetes.gang != "kueue" or self.kubernetes.elastic_jobs_gate
        return takes_autoscaler and self.kubernetes.num_of_hosts == 1

    @property
    def elastic(self) -> bool:
        """The training group may have more or fewer pods while the run goes on."""
        asked = self.job.resources.accelerators
        return isinstance(asked, Range) and not self.rigid and self.may_scale and self.kind is not Kind.RAYSERVICE

    @property
    def autoscaling(self) -> bool:
        """Ray's autoscaler is on."""
        cpu_groups = bool(self.kubernetes.cpu_groups) and self.kind is not Kind.RAYSERVICE
        return self.elastic or cpu_groups

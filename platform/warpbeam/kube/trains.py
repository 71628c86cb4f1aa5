"""Which accelerators this version's engine computes on: a manifest that could never train is not rendered."""

from __future__ import annotations

from warpbeam.errors import PlatformError
from warpbeam.kube.order import Kind
from warpbeam.pool import Pool


def refuse_what_does_not_train(pool: Pool, kind: Kind) -> None:
    """Raise PlatformError for a run or a served model on TPUs; a bare RayCluster may be somebody's own."""
    runs = kind in (Kind.RAYJOB, Kind.RAYCRONJOB, Kind.RAYSERVICE)
    if runs and pool.kubernetes is not None and pool.kubernetes.accelerator_resource == "google.com/tpu":
        raise PlatformError(
            f"the pool `{pool.name}` has TPUs, and this version neither trains nor serves on them",
            why="its engine is torch on CUDA (or ROCm) and CPUs; a plan for TPUs is arithmetic",
            fix="choose another pool (--pool), or --kind raycluster for a loop of your own; --force renders it anyway",
            reason="no_tpu_engine",
        )

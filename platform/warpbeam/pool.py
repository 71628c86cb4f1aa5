"""The pool file: what the platform team offers. Read on the machine that uses it; its digest goes into the record.

Without a file there is the built-in pool `local`: this machine, its CPU cores, the embedded S3 server. `machine` in the
place of a number means: measured where the file is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import psutil
from pydantic import BeforeValidator, Field, ValidationInfo

from warpbeam import job_checks as checks
from warpbeam import pool_kubernetes_checks
from warpbeam.errors import PlatformError, UserError
from warpbeam.job import EnvName, Name, Section
from warpbeam.plan.machine import FIGURES
from warpbeam.pool_kubernetes import Kubernetes, ObjectName
from warpbeam.spec_file import Spec, build, digest, load_spec
from warpbeam.spec_problems import Problem, nearest, refuse, show

if TYPE_CHECKING:
    from warpbeam.storage.config import StorageConfig

POOL_SCHEMA: Final = "warpbeam/pool/v1"
POOL_ENV_VAR: Final = "WARPBEAM_POOL"
GIB: Final = 1 << 30
LEAST_FIGURE: Final = 1e8
"""FLOP/s or bytes/s below which a figure was meant in other units (TFLOP/s, GB/s)."""

# The same as cluster/pools/local.yaml (a test compares them): an installed package has no cluster/ folder.
LOCAL_POOL: Final[dict[str, Any]] = {
    "schema": POOL_SCHEMA,
    "name": "local",
    "accelerator": {"kind": "cpu", "memory_gib": "machine"},
    "nodes": 1,
    "accelerators_per_node": "machine",
    "cpus_per_worker": 0.5,
    "storage": {"kind": "embedded", "uri": "s3://warpbeam"},
}


def machine_cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_gib() -> float:
    """Memory of this machine for each core, below the container's limit where there is one."""
    total = psutil.virtual_memory().total
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit_file).read_text()))
        except (OSError, ValueError):  # no such limit, or the word `max`
            continue
    return round(total / GIB / machine_cores(), 1)


def _or_measured(measure: Callable[[], float], number: type) -> BeforeValidator:
    """Accept the word `machine` where a number is wanted, on a CPU pool."""

    def read(value: object, info: ValidationInfo) -> object:
        if value != "machine":
            return value
        kind = info.data.get("kind") or getattr(info.data.get("accelerator"), "kind", "cpu")
        if kind != "cpu":
            refuse(Problem((), f"`machine` measures CPUs, the accelerator is {show(kind)}", "write the number"))
        return measure()

    return BeforeValidator(read, json_schema_input_type=number | Literal["machine"])


class Accelerator(Section):
    """What one rank computes on."""

    kind: str = Field(min_length=1, examples=["H100-SXM"], description="cpu, or a GPU's name: H100-SXM, A100-80GB, L4.")
    memory_gib: Annotated[float, _or_measured(machine_memory_gib, float)] = Field(
        gt=0,
        examples=[80],
        description="Of one accelerator; on a CPU pool, host memory for each core. `machine`: measured.",
    )
    figures: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {},
        examples=["{link_domain: 4, nic_bandwidth: 25e9}"],
        description="What differs from the maker's datasheet (plan/hardware.py): FLOP/s, bytes/s, accelerators.",
    )

    def contradictions(self) -> list[Problem]:
        found: list[Problem] = []
        if self.kind != "cpu" and self.kind.lower() == "cpu":
            found.append(Problem(("kind",), f"is {show(self.kind)}", "write `kind: cpu`"))
        for name in self.figures:
            if name not in FIGURES:
                near = nearest(name, list(FIGURES))
                advice = f"did you mean `{near}`?" if near else f"there are {', '.join(FIGURES)}"
                found.append(Problem(("figures", name), "is no figure of an accelerator", advice))
        for name, value in self.figures.items():
            if name.startswith(("peak_", "memory_b", "link_b", "nic_", "host_")) and value < LEAST_FIGURE:
                unit, usual = ("FLOP/s", "e12") if name.startswith("peak_") else ("bytes/s", "e9")
                wrong = f"is {value:g} {unit}, which no accelerator is"
                found.append(Problem(("figures", name), wrong, f"write single {unit}, for example `{value:g}{usual}`"))
        return found


class Storage(Section):
    """The pool's default store. Credentials come from the environment, never from here."""

    kind: Literal["s3", "local", "embedded"] = "s3"
    uri: str = Field(min_length=1, examples=["s3://bucket/prefix"])
    endpoint_url: str | None = Field(None, examples=['"http://minio:9000"'], description="Default: AWS.")
    region: str | None = None

    def contradictions(self) -> list[Problem]:
        scheme = "file" if self.kind == "local" else "s3"
        shape, written = checks.SHAPES[scheme]
        found: list[Problem] = []
        if not shape.fullmatch(self.uri):
            found.append(Problem(("uri",), f"must be {written} for kind {self.kind}"))
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            found.append(Problem(("endpoint_url",), "must begin with http:// or https://"))
        if self.endpoint_url is not None and self.kind != "s3":
            found.append(Problem(("endpoint_url",), f"has no meaning for kind {self.kind}", "leave it out"))
        return found


class Image(Section):
    """The container image workers run, and what is in it."""

    ref: str = Field(min_length=1, examples=["registry/warpbeam@sha256:..."], description="On Kubernetes by digest.")
    pull_secrets: list[ObjectName] = Field([], examples=['["registry"]'], description="Where the registry wants one.")
    versions: dict[str, str] = Field(
        {},
        examples=['{python: "3.11.9", ray: "2.58.0", cuda: "12.9"}'],
        description="What it holds: package -> version, as `warpbeam version --check` prints them.",
    )


class SecretSource(Section):
    """Where a secret's value is found on the machines of the pool."""

    env: EnvName | None = Field(None, examples=["HF_TOKEN"])
    file: str | None = Field(None, min_length=1, examples=["/var/run/secrets/hf-token"])

    def contradictions(self) -> list[Problem]:
        if (self.env is None) == (self.file is None):
            return [Problem((), "needs either `env` or `file`", "write for example `{env: HF_TOKEN}`")]
        return []


class Pool(Section):
    """A whole pool file."""

    schema_: Literal["warpbeam/pool/v1"] = Field(alias="schema", examples=[POOL_SCHEMA])
    name: Name = Field(examples=["h100"])
    accelerator: Accelerator = Field(examples=["{kind: H100-SXM, memory_gib: 80}"])
    nodes: int = Field(ge=1, examples=[2])
    accelerators_per_node: Annotated[int, _or_measured(machine_cores, int)] = Field(
        ge=1, examples=[8], description="On a CPU pool: cores. `machine`: counted."
    )
    cpus_per_worker: float = Field(1.0, gt=0, description="CPU cores Ray reserves for one rank.")
    host_memory_gib: float | None = Field(
        None, gt=0, examples=[1024], description="Of one node; without it no plan chooses to offload states by itself."
    )
    local_disk: str = Field("/tmp/warpbeam", min_length=1, description="A folder on each node's fastest disk.")
    storage: Storage = Field(examples=["{uri: s3://bucket/prefix}"])
    image: Image | None = None
    secrets: dict[str, SecretSource] = Field({}, examples=["{hf-token: {env: HF_TOKEN}}"])
    env: dict[EnvName, str] = Field(
        {}, examples=["{NCCL_SOCKET_IFNAME: eth0}"], description="Of every worker; no secrets."
    )
    preflight: Literal["off", "require"] = Field(
        "off", description="require: no job is trained before `warpbeam preflight --quick` has passed on its ranks."
    )
    price_per_accelerator_hour: float | None = Field(None, ge=0, le=1e9, description="In the currency of your choice.")
    kubernetes: Kubernetes | None = Field(None, description="A cluster with KubeRay: what manifests are made from.")

    def contradictions(self) -> list[Problem]:
        return pool_kubernetes_checks.pool(self)

    @property
    def is_cpu(self) -> bool:
        return self.accelerator.kind == "cpu"

    @property
    def accelerators(self) -> int:
        """GPUs, or CPU cores, of the whole pool."""
        return self.nodes * self.accelerators_per_node

    @property
    def max_ranks(self) -> int:
        """Ranks that can be placed: one on a GPU; on CPUs `cpus_per_worker` below 1 lets several share a core."""
        if not self.is_cpu:
            return self.accelerators
        return self.nodes * max(1, int(self.accelerators_per_node / self.cpus_per_worker))

    def memory_per_rank_gib(self, world_size: int) -> float:
        """A GPU's own memory, or the share of a node's memory where CPU ranks sit side by side."""
        if not self.is_cpu:
            return self.accelerator.memory_gib
        ranks_on_node = -(-world_size // self.nodes)
        return self.accelerator.memory_gib * self.accelerators_per_node / ranks_on_node

    def storage_config(self, store: str | None = None) -> StorageConfig:
        """The pool's store, or another location reached the same way (`checkpoint.store`)."""
        from warpbeam.storage.config import StorageConfig

        if store is not None and store.startswith("file://"):
            return StorageConfig(uri=store, kind="local")
        return StorageConfig(
            uri=store or self.storage.uri,
            kind=self.storage.kind,
            endpoint_url=self.storage.endpoint_url,
            region=self.storage.region,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able content with the file's own keys; `parse_pool` reads it back."""
        return self.model_dump(mode="json", by_alias=True)


HINTS: Final[dict[str, str]] = {
    "gpus_per_node": "write `accelerators_per_node`",
    "num_nodes": "write `nodes`",
    "gpu": "write `accelerator: {kind: H100-SXM, memory_gib: 80}`",
    "bucket": "write `storage: {uri: s3://bucket/prefix}`",
}


@dataclass(frozen=True)
class LoadedPool:
    """A pool with where it came from; `path` is None for the built-in one."""

    pool: Pool
    path: Path | None
    digest: str


def load_pool(which: Path | str | None = None) -> LoadedPool:
    """The pool at a path, or by its name in cluster/pools/, or the one WARPBEAM_POOL names, or the built-in `local`.

    Raises UserError where there is none, PlatformError where the file is wrong.
    """
    chosen = str(which) if which is not None else os.environ.get(POOL_ENV_VAR, "local")
    path = find_pool(chosen)
    if path is None:
        pool = parse_pool(LOCAL_POOL, name="the built-in pool")
    else:
        pool = load_spec(path, Pool, kind="pool file", hints=HINTS, error=PlatformError)
    return LoadedPool(pool=pool, path=path, digest=digest(pool))


def parse_pool(content: dict[str, Any], *, name: str = "pool") -> Pool:
    """A pool from its `to_dict()`, with the same errors a file gets."""
    return build(Spec(name, content), Pool, kind="pool file", hints=HINTS, error=PlatformError)


def find_pool(chosen: str) -> Path | None:
    """The file `chosen` means; None for the built-in pool."""
    if "/" in chosen or os.sep in chosen or chosen.endswith((".yaml", ".yml")):
        return Path(chosen)
    if chosen == "local":
        return None
    folders = [folder / "cluster" / "pools" for folder in (Path.cwd(), *Path.cwd().parents)]
    for folder in folders:
        if (path := folder / f"{chosen}.yaml").is_file():
            return path
    names = sorted({"local"} | {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    near = nearest(chosen, names)
    fix = f"did you mean `{near}`?" if near else f"there are {', '.join(names)}; or give the path of a pool file"
    raise UserError(f"there is no pool `{chosen}`", fix=fix, reason="missing_pool")

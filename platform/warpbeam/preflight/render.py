"""A preflight as a RayJob: the same pods, image, environment, queue and gang as a training job of that size."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from warpbeam.errors import UserError
from warpbeam.job import parse_job
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.render import Rendered, render
from warpbeam.plan.plan import make_plan
from warpbeam.pool import parse_pool

if TYPE_CHECKING:
    from warpbeam.pool import LoadedPool, Pool

HOSTNAME: Final = "kubernetes.io/hostname"
_MODEL: Final = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
"""Manifests are made for a job; the one that stands here only has a size."""


def rendered(loaded: LoadedPool, ranks: int, command: str, *, team: str | None, node: str | None) -> Rendered:
    """The documents.

    Args:
        command: of the driver, on the head.
        team: in whose namespace; None: the pool's only one.
        node: the Kubernetes node that all accelerator pods must be on.

    Raises:
        UserError: several teams, and none was named.
        PlatformError: the pool is not on Kubernetes, or has no such team.
    """
    pool = loaded.pool if node is None else _on_node(loaded.pool, node)
    job = parse_job(_job(_team(pool, team), ranks), name="the preflight's job")
    plan = make_plan(job, pool, world_size=ranks, model_config=dict(_MODEL))
    order = Order(
        kind=Kind.RAYJOB, plan=plan, job=job, pool=pool, pool_digest=loaded.digest, rigid=True, entrypoint=command
    )
    return render(order)


def _team(pool: Pool, team: str | None) -> str:
    teams = list(pool.kubernetes.teams) if pool.kubernetes is not None else []
    if team is not None or not teams:
        return team or "platform"
    if len(teams) > 1:
        raise UserError(
            f"the pool `{pool.name}` has several teams: {', '.join(teams)}",
            fix=f"say in whose namespace it is to run: --team {teams[0]}",
            reason="which_team",
        )
    return teams[0]


def _job(team: str, ranks: int) -> dict[str, Any]:
    return {
        "schema": "warpbeam/job/v1",
        "name": f"preflight-{secrets.token_hex(3)}",
        "team": team,
        "model": {"config": _MODEL, "tokenizer": {"train": {"vocab_size": 512}}},
        "data": {"train": [{"path": "none.jsonl"}], "seq_len": 64},
        "train": {"method": "pretrain", "max_steps": 1, "global_batch": ranks, "lr": 1e-3},
        "parallelism": {"strategy": "ddp"},
        "resources": {"accelerators": ranks},
    }


def _on_node(pool: Pool, node: str) -> Pool:
    content = pool.to_dict()
    if content["kubernetes"] is not None:
        content["kubernetes"]["node_selector"][HOSTNAME] = node
    return parse_pool(content, name="--node")

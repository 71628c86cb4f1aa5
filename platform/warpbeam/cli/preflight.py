"""`warpbeam preflight`: do the machines hold what the pool promises? Before a job finds out."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Accelerators, Json, Pool, place_options
from warpbeam.cli.output import note, out, print_json
from warpbeam.errors import PlatformError, UnknownFate, UserError

if TYPE_CHECKING:
    from warpbeam.pool import LoadedPool
    from warpbeam.preflight.launch import Result

_WHERE = "`--local N` for ranks on this machine, `--address HOST:PORT` for a Ray cluster, `--pool POOL` for a pool"


Local = Annotated[int | None, typer.Option("--local", metavar="N", min=1, max=256, help="N ranks on this machine.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="A Ray cluster: auto, HOST:PORT, http://HOST:8265.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="K", min=1, max=64, help="With --local: network namespaces. Default: 2 where allowed."
    ),
]
NodeName = Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only this node of the cluster.")]
Quick = Annotated[bool, typer.Option("--quick", help="Within a minute: fewer sizes, fewer links.")]
Within = Annotated[float | None, typer.Option("--within", metavar="SECONDS", min=10, help="How long it may take.")]
StartTimeout = Annotated[
    float | None, typer.Option("--start-timeout", metavar="SECONDS", min=1, help="How long ranks may take to appear.")
]
Render = Annotated[
    bool, typer.Option("--render", help="Print the RayJob that runs it in the pool's own pods, for kubectl.")
]
InTeam = Annotated[
    str | None,
    typer.Option("--team", metavar="TEAM", help="With --render: in whose namespace. Default: the only one."),
]


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the command line said."""

    pool: str | None = None
    local: int | None = None
    address: str | None = None
    accelerators: int | None = None
    nodes: int | None = None
    node: str | None = None
    quick: bool = False
    within: float | None = None
    start_timeout: float | None = None
    team: str | None = None
    json: bool = False


def preflight(
    local: Local = None,
    address: Address = None,
    pool: Pool = None,
    accelerators: Accelerators = None,
    nodes: Nodes = None,
    node: NodeName = None,
    quick: Quick = False,
    within: Within = None,
    start_timeout: StartTimeout = None,
    render: Render = False,
    team: InTeam = None,
    json: Json = False,
) -> None:
    """Measure versions, limits, clocks, disk, store, devices, links and collectives, and name who is to blame.

    Exit code 0: passed; 1: somebody is named; 2: the input; 3: it could not be begun; 4: failed, and nobody is named.
    """
    from warpbeam.pool import load_pool

    words = Words(
        pool=pool,
        local=local,
        address=address,
        accelerators=accelerators,
        nodes=nodes,
        node=node,
        quick=quick,
        within=within,
        start_timeout=start_timeout,
        team=team,
        json=json,
    )
    _refuse_contradictions(words, render=render)
    loaded = load_pool(pool)
    if render:
        _render(loaded, words)
        return
    address = None if local is not None else address or os.environ.get("RAY_ADDRESS") or None
    if address is not None and address.startswith(("http://", "https://")):
        _send(address, loaded, words)
    elif address is not None:
        _finish(_on_ray(loaded, address, words), loaded, json)
    else:
        _finish(_local(loaded, local or _ranks_here(loaded, words), words), loaded, json)


def _refuse_contradictions(words: Words, *, render: bool) -> None:
    local = words.local is not None
    wrong = {
        "--address has no meaning beside --local": local and words.address is not None,
        "--node has no meaning beside --local": local and words.node is not None,
        "--accelerators has no meaning beside --local": local and words.accelerators is not None,
        "--render has no meaning beside --local": local and render,
        "--nodes goes with --local": words.nodes is not None and not local,
        "--team goes with --render": words.team is not None and not render,
        "--json has no meaning beside --render": words.json and render,
    }
    for what, holds in wrong.items():
        if holds:
            raise UserError(what, fix=_WHERE, reason="bad_arguments")


def _ranks_here(loaded: LoadedPool, words: Words) -> int:
    """How many ranks of a pool are processes of this machine. Raises where its machines are others."""
    found, options = loaded.pool, place_options(words.pool)
    if words.pool is None and "WARPBEAM_POOL" not in os.environ:
        raise UserError("preflight of what?", fix=_WHERE, reason="bad_arguments")
    if found.kubernetes is not None:
        raise PlatformError(
            f"the pool `{found.name}` is on Kubernetes, and this is not one of its pods",
            why="only its own pods have its image, its environment and its links",
            fix=f"`warpbeam preflight{options} --render | kubectl apply --server-side -f -` runs it there; in a pod or "
            "a job of the cluster it is `warpbeam preflight --address auto`",
            reason="not_in_the_pool",
        )
    if not found.is_cpu or found.nodes > 1:
        raise PlatformError(
            f"the pool `{found.name}` does not say how its machines are reached",
            why="it has no `kubernetes:` section, so there is a Ray cluster already",
            fix=f"name it: warpbeam preflight --address HOST:PORT{options}",
            reason="no_address",
        )
    if words.node is not None:
        raise UserError("--node goes with --address", fix=_WHERE, reason="bad_arguments")
    return words.accelerators or found.max_ranks


def _local(loaded: LoadedPool, ranks: int, words: Words) -> Result:
    from warpbeam.cli.preflight_progress import PreflightProgress
    from warpbeam.preflight.launch import ask_of, preflight_local

    ask = ask_of(loaded.pool, quick=words.quick, budget_s=words.within, local=True, join_s=words.start_timeout)
    with PreflightProgress(quiet=words.json) as progress:
        return preflight_local(loaded.pool, ranks, ask, nodes=words.nodes, progress=progress, say=note)


def _on_ray(loaded: LoadedPool, address: str, words: Words) -> Result:
    from warpbeam.cli.preflight_progress import PreflightProgress
    from warpbeam.preflight.launch import ask_of, join_ray, preflight_on_ray

    found = loaded.pool
    ask = ask_of(found, quick=words.quick, budget_s=words.within, local=False, join_s=words.start_timeout)
    join_ray(address)
    import ray

    try:
        with PreflightProgress(quiet=words.json) as progress:
            return preflight_on_ray(found, _ranks(loaded, words), ask, progress=progress, node=words.node)
    finally:
        ray.shutdown()


def _ranks(loaded: LoadedPool, words: Words) -> int:
    """Of the whole pool, or of one node of it."""
    found = loaded.pool
    return words.accelerators or (found.max_ranks // found.nodes if words.node is not None else found.max_ranks)


def _send(address: str, loaded: LoadedPool, words: Words) -> None:
    """As a job of the cluster behind a dashboard. Ends with the job's exit code."""
    import secrets

    from warpbeam.cli.submit import exit_code
    from warpbeam.launch.ray_jobs import JobState, RayJobs, follow

    jobs = RayJobs(address)
    jobs.ray_version()
    submission_id = f"preflight-{secrets.token_hex(4)}"
    command = shlex.join(inner_words(_ranks(loaded, words), words, node=words.node))
    jobs.submit(command, None, submission_id, {"warpbeam_preflight": loaded.pool.name})
    if not words.json:
        note(f"preflight was sent as {submission_id}; it measures against the cluster's own pool file")
    try:
        for piece in follow(jobs, submission_id, on_trouble=note):
            if isinstance(piece, JobState):
                raise typer.Exit(exit_code(piece))
            out.file.write(piece)
            out.file.flush()
    except KeyboardInterrupt:
        jobs.stop(submission_id)
        raise UnknownFate(f"{submission_id} was stopped", reason="interrupted") from None


def inner_words(ranks: int, words: Words, *, node: str | None = None) -> list[str]:
    """The command that a job of the cluster runs."""
    found = ["warpbeam", "preflight", "--address", "auto", "--accelerators", str(ranks)]
    found += ["--node", node] if node else []
    found += ["--quick"] if words.quick else []
    found += ["--within", f"{words.within:g}"] if words.within else []
    found += ["--start-timeout", f"{words.start_timeout:g}"] if words.start_timeout else []
    return [*found, *(["--json"] if words.json else [])]


def _render(loaded: LoadedPool, words: Words) -> None:
    from warpbeam.preflight.render import rendered

    found, ranks = loaded.pool, _ranks(loaded, words)
    command = shlex.join(inner_words(ranks, words))  # with --node the pods are there already
    document = rendered(loaded, ranks, command, team=words.team, node=words.node)
    for text in document.notes:
        note(text)
    sys.stdout.write(document.text)
    if found.kubernetes is not None and found.kubernetes.gang == "gate":
        note("the RayJob is suspended: `warpbeam gate` lets it in when all of its pods fit")


def _finish(result: Result, loaded: LoadedPool, json: bool) -> None:
    """Print it; ends by raising the exit code."""
    from warpbeam.cli.preflight_table import show

    if json:
        print_json(result.verdict.to_dict(result.measured, pool=loaded.pool.name))
    else:
        show(result)
    if result.verdict.exit_code:
        raise typer.Exit(result.verdict.exit_code)

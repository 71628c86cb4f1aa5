"""`warpbeam gate`: the platform's doorkeeper of gangs, for clusters without Kueue, Volcano or YuniKorn."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Annotated

import typer

from warpbeam.cli.options import Context, Pool
from warpbeam.cli.output import say
from warpbeam.errors import PlatformError, UserError, WarpbeamError


def gate(
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAMESPACE", help="Where its Lease, or its Deployment, is.")
    ] = "warpbeam-system",
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=1.0, help="Between two looks.")] = 5.0,
    context: Context = None,
    manifests: Annotated[
        bool, typer.Option("--manifests", help="Print its Deployment and rights for --pool instead.")
    ] = False,
    pool: Pool = None,
) -> None:
    """Let suspended runs in when all of their pods fit, and take back what does not run by its deadline.

    A platform team runs it once a cluster: `warpbeam gate --manifests --pool POOL | kubectl apply --server-side -f -`.
    """
    if manifests:
        _print_manifests(pool, namespace)
        return
    if pool is not None:
        raise UserError("--pool goes with --manifests", fix="leave it out: the gate looks at nodes", reason="bad_input")
    _run(context, namespace, every)


def _run(context: str | None, namespace: str, every_s: float) -> None:
    """Until SIGTERM or Ctrl-C; the Lease is let go."""
    from warpbeam.kube.gate_loop import LEASE, Gate
    from warpbeam.kube.lease import Place, let_go
    from warpbeam.launch.kube_look import needs_kube_extra

    try:
        from warpbeam.kube.client import Cluster
    except ImportError as error:
        raise needs_kube_extra() from error
    cluster = Cluster.connect(context)
    place = Place(namespace, LEASE, f"{os.environ.get('POD') or socket.gethostname()}-{os.getpid()}")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    keeper = Gate(cluster, place, _say)
    with suppress(KeyboardInterrupt):
        while not ended.is_set():
            keeper.turn()
            ended.wait(every_s)
    with suppress(WarpbeamError):  # its time runs out by itself
        let_go(cluster, place)


def _say(line: str) -> None:
    say(line)
    sys.stdout.flush()


def _print_manifests(pool: str | None, namespace: str) -> None:
    from warpbeam.kube.gate_manifests import gate_manifests
    from warpbeam.kube.yaml_text import explained
    from warpbeam.pool import load_pool

    found = load_pool(pool).pool
    if found.image is None or found.kubernetes is None:
        raise PlatformError(
            f"the pool `{found.name}` has no image for Kubernetes",
            fix="name a pool with `image:` and `kubernetes:`: --pool POOL",
            reason="no_kubernetes",
        )
    header = [
        "Rendered by `warpbeam gate --manifests`: the gang's doorkeeper, once a cluster.",
        "Apply: kubectl apply --server-side -f FILE",
    ]
    documents = gate_manifests(found.image, namespace=namespace, run_as_user=found.kubernetes.run_as_user)
    sys.stdout.write(explained(documents, header))

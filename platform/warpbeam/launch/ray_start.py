"""Starting a Ray of our own on this machine: without what nobody will look at, and with more patience than Ray has."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

NODE_START_S = 120.0


@contextlib.contextmanager
def lean_and_patient() -> Iterator[None]:
    """Start a Ray of our own without what nobody will look at: the dashboard's server, its agent's modules, the
    autoscaler and the reader of workers' logs, which we capture ourselves. `include_dashboard=False` still starts them
    all: 7.7 s instead of 3.0 s to a usable Ray on two cores. And wait for it longer than Ray does.

    Ray has no setting for this, so its start-up functions are replaced for the length of the start; where a release
    has renamed one, that one is simply started as usual.
    """
    from ray._private import node, services, utils

    usual_get_node = services.get_node

    def patient_get_node(*arguments: Any) -> Any:
        """Ray gives a node 30 seconds to appear, which a machine with much else to do may not keep."""
        deadline = time.monotonic() + NODE_START_S
        while True:
            try:
                return usual_get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    replaced = [
        (services, "get_node", patient_get_node),
        (node.Node, "start_api_server", lambda self, **options: None),
        (node.Node, "start_monitor", lambda self: None),
        (node.Node, "start_log_monitor", lambda self: None),
        (utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted here")),
    ]
    known = [(owner, name, getattr(owner, name), lean) for owner, name, lean in replaced if hasattr(owner, name)]
    for owner, name, _, lean in known:
        setattr(owner, name, lean)
    try:
        yield
    finally:
        for owner, name, usual, _ in known:
            setattr(owner, name, usual)

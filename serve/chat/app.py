"""A chat endpoint to copy: the library's application under a name of your own.

    serve run serve.chat.app:app model=/path/to/an/export      # this machine, in the foreground
    serve deploy serve/chat/serve.yaml                         # a running cluster

Copy the folder and change what is yours: defaults below, sizes in serve.yaml. `warpbeam deploy` needs none of it.
"""

from __future__ import annotations

from typing import Any

from ray.serve import Application

from warpbeam.serve.app import build_app

DEFAULTS = {"name": "chat"}


def app(args: dict[str, Any]) -> Application:
    """Ray Serve calls this with serve.yaml's `args`, or with the command line's `key=value`s (all text)."""
    return build_app({**DEFAULTS, **args})

"""`warpbeam serve MODEL`: the same as deploy, but in the foreground: it ends with the command."""

from __future__ import annotations

import signal
import threading

from warpbeam.cli.deploy import Host, ModelName, Name, Port, Version, find_model
from warpbeam.cli.options import Pool, Store, Team, storage_config
from warpbeam.cli.output import note, say, warn


def serve(
    model: ModelName,
    name: Name = None,
    version: Version = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
) -> None:
    """Serve a model until Ctrl-C."""
    from warpbeam.serve.deploy import deploy, undeploy

    config = storage_config(pool, store)
    uri, default_name = find_model(model, config, team, version)
    served = deploy(uri, name=name or default_name, host=host, port=port, storage=config, progress=note)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    try:
        for text in served.notes:
            warn(text)
        say(f"{served.name} answers at {served.url}/v1 until Ctrl-C")
        ended.wait()
    except KeyboardInterrupt:
        note("stopping")
    finally:
        undeploy(served.name)

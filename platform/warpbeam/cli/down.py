"""`warpbeam down`: end what earlier commands left running on this machine. Data and settings stay."""

from __future__ import annotations

from warpbeam.cli.output import say


def down() -> None:
    """Stop the served models and the embedded S3 server of this machine.

    Their data stays; the next command starts them again.
    """
    from warpbeam.serve.deploy import stop_serving
    from warpbeam.storage.embedded import home, stop_server

    served = stop_serving(home())
    stored = stop_server(home())
    for what, ended in (("the served models", served), ("the S3 server", stored)):
        say(f"{what}: stopped" if ended else f"{what}: not running")

"""A real S3 server for the tests of a session: the embedded one, in a home of its own.

Every test that asks for `s3` shares the server; use a prefix of your own: `replace(s3, uri=f"{s3.uri}/my-area")`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from warpbeam.storage.config import StorageConfig
from warpbeam.storage.embedded import ensure_server

# Waits until the tests' process is gone, however it ended, then stops the server and removes the data. Reading a pipe
# that nobody writes to costs nothing, and works after kill -9 too.
_KEEPER = """
import shutil, sys
from pathlib import Path
sys.stdin.buffer.read()
from warpbeam.storage.embedded import stop_server
home = Path(sys.argv[1])
stop_server(home)
shutil.rmtree(home, ignore_errors=True)
"""


@pytest.fixture(scope="session")
def warpbeam_home() -> Iterator[Path]:
    """A temporary WARPBEAM_HOME, set in the environment so that child processes (Ray's workers) find it too."""
    home = Path(tempfile.mkdtemp(prefix="wb-", dir="/tmp"))
    before = os.environ.get("WARPBEAM_HOME")
    os.environ["WARPBEAM_HOME"] = str(home)
    keeper = subprocess.Popen([sys.executable, "-c", _KEEPER, str(home)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield home
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=60)
        if before is None:
            del os.environ["WARPBEAM_HOME"]
        else:
            os.environ["WARPBEAM_HOME"] = before


@pytest.fixture(scope="session")
def s3(warpbeam_home: Path) -> StorageConfig:
    """The address of the session's S3 server: bucket `warpbeam`, empty at first."""
    return ensure_server(warpbeam_home).storage_config()

"""The laboratory itself: parts that are broken come back, and nothing is left of one whose program was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.kube.lab import cgroups
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import REPOSITORY, Place
from tests.kube.lab.sandbox import wait_for
from warpbeam.storage.processes import identify

OTHER = """
import time
from pathlib import Path
from tests.kube.lab.layout import Place
from tests.kube.lab.session import kept
with kept(Place(Path({root!r})), real_nodes=1):
    print("up", flush=True)
    time.sleep(600)
"""


def test_the_api_server_comes_back_with_everything_that_it_knew(lab: Laboratory, api: Api) -> None:
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note", "namespace": "default"}}
    api.apply({**note, "data": {"a": "1"}})
    lab.kill("apiserver")
    try:
        assert not lab.sandbox.runs("apiserver")
        assert not api.ready()
    finally:
        lab.start("apiserver")
    wait_for("the API server", api.ready)
    found = api.get("v1", "ConfigMap", "default", "note")
    assert found is not None
    assert found["data"] == {"a": "1"}


def test_nothing_is_left_when_its_program_is_killed(lab: Laboratory, tmp_path: Path) -> None:
    """A second one beside the first: they share neither network nor control groups nor folders."""
    place = Place(Path("/tmp") / f"wb-kube-{tmp_path.name[-6:]}-{psutil.Process().pid}")
    code = OTHER.format(root=str(place.root))
    program = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        assert any(line == "up\n" for line in lines), "it has come up"
        groups = place.groups
        pids = cgroups.members(groups)
        assert len(pids) > 10
        program.send_signal(signal.SIGKILL)
        program.wait()
        wait_for("the keeper's work", lambda: not place.root.exists(), 60)
        assert not [group for group in groups if group.exists()]
        wait_for("their end", lambda: not [pid for pid in pids if identify(pid)], 10)
    finally:
        program.kill()
        program.wait()
        Path(f"{place.root}.lock").unlink(missing_ok=True)
    assert lab.is_up, "the other one still runs"

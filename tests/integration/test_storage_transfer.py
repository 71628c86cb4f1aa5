"""Large files to and from S3: every fault ends in the right bytes or in an error, in seconds, and leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.scripted_s3 import Fault, ScriptedS3
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.retention import sweep
from warpbeam.errors import InfraError
from warpbeam.storage import ObjectStore, StorageConfig, layout, open_store
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.parts import PART_BYTES
from warpbeam.storage.s3 import S3Store
from warpbeam.storage.s3_client import ClientSettings, s3_client
from warpbeam.storage.store import TransferCancelled

SIZE = 2 * PART_BYTES + 12_345
KEY = "/b/p/big"
HASTY = ClientSettings(connect_timeout_s=2, read_timeout_s=2)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with ScriptedS3() as server:
        yield server


@pytest.fixture
def store(scripted: ScriptedS3) -> S3Store:
    return S3Store(StorageConfig(uri="s3://b/p", kind="s3", endpoint_url=scripted.url), HASTY)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.mark.parametrize(
    "faults",
    [
        ["stall", "behave", "stall"],
        ["silence"],
        ["reset", "reset", "behave", "reset"],
        ["unavailable", "behave", "unavailable"],
        ["lose_answer", "lose_answer"],
    ],
    ids=lambda faults: faults[0],
)
def test_a_part_that_fails_is_sent_again_in_seconds(
    scripted: ScriptedS3, store: S3Store, big: Path, faults: list[Fault]
) -> None:
    scripted.script["PUT"].extend(faults)
    began = time.monotonic()
    store.upload(big, "big")
    assert time.monotonic() - began < 30
    assert scripted.objects[KEY] == big.read_bytes()
    assert scripted.uploads == {}
    sent = sum(request.startswith("PUT") for request in scripted.requests)
    assert sent >= 3 + sum(fault != "behave" for fault in faults)


def test_a_part_on_a_slow_line_is_not_taken_for_a_stalled_one(
    scripted: ScriptedS3, store: S3Store, tmp_path: Path
) -> None:
    """The timeout counts for a piece of a part; a whole one takes four seconds here."""
    store = S3Store(store.config, ClientSettings(connect_timeout_s=1, read_timeout_s=10))
    small = tmp_path / "small"
    small.write_bytes(os.urandom(PART_BYTES))
    scripted.script["PUT"].append("slow")
    store.upload(small, "big")
    assert scripted.objects[KEY] == small.read_bytes()
    assert scripted.requests.count(f"PUT {KEY}") == 1


def test_a_lost_answer_to_the_end_of_an_upload(scripted: ScriptedS3, store: S3Store, big: Path) -> None:
    """The client asks again and hears that there is no such upload: the object's nonce says that it is ours."""
    scripted.script["POST"].extend(["behave", "lose_answer"])
    store.upload(big, "big")
    assert scripted.objects[KEY] == big.read_bytes()


@pytest.mark.parametrize("fault", ["truncate", "forget"])
def test_an_upload_that_is_not_stored_whole_is_an_error(
    scripted: ScriptedS3, store: S3Store, big: Path, fault: Fault
) -> None:
    scripted.objects[KEY] = os.urandom(SIZE)  # of somebody else, and of the same size
    scripted.script["POST"].extend(["behave", fault])
    with pytest.raises(InfraError, match="s3://b/p/big") as caught:
        store.upload(big, "big")
    assert caught.value.reason == "size_mismatch"


def test_an_upload_that_fails_is_aborted(scripted: ScriptedS3, store: S3Store, big: Path) -> None:
    scripted.script["PUT"].extend(["unavailable"] * 100)
    with pytest.raises(InfraError, match="SlowDown"):
        store.upload(big, "big")
    assert scripted.uploads == {}
    assert scripted.requests[-1].startswith("DELETE")
    assert KEY not in scripted.objects


def test_an_upload_is_given_up_between_parts(scripted: ScriptedS3, store: S3Store, tmp_path: Path) -> None:
    huge, given_up = tmp_path / "huge", threading.Event()
    with huge.open("wb") as file:
        file.truncate(20 * PART_BYTES)
    scripted.hook = lambda request: given_up.set() if "partNumber=3" in request else None
    with pytest.raises(TransferCancelled):
        store.upload(huge, "big", cancel=given_up)
    assert scripted.uploads == {}
    assert KEY not in scripted.objects
    assert sum(request.startswith("PUT") for request in scripted.requests) <= 8


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_its_size_meanwhile(
    scripted: ScriptedS3, store: S3Store, tmp_path: Path, change: int
) -> None:
    path = tmp_path / "changing"
    path.write_bytes(bytes(6 * PART_BYTES))

    def cut_or_grow(request: str) -> None:
        if "partNumber=1" in request:
            os.truncate(path, 6 * PART_BYTES + change)

    scripted.hook = cut_or_grow
    with pytest.raises(InfraError, match="changing changed") as caught:
        store.upload(path, "big")
    assert caught.value.reason == "size_mismatch"
    assert scripted.uploads == {}


@pytest.mark.parametrize("faults", [["cut_body", "cut_body", "behave", "cut_body"], ["stall", "behave", "stall"]])
def test_a_range_that_fails_is_asked_for_again(
    scripted: ScriptedS3, store: S3Store, big: Path, tmp_path: Path, faults: list[Fault]
) -> None:
    scripted.objects[KEY] = big.read_bytes()
    scripted.script["GET"].extend(faults)
    began = time.monotonic()
    sha256 = store.download("big", tmp_path / "back", hashed=True)
    assert time.monotonic() - began < 30
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert sha256 == hashlib.sha256(big.read_bytes()).hexdigest()


def test_an_object_that_changes_during_a_download_is_refused(
    scripted: ScriptedS3, store: S3Store, big: Path, tmp_path: Path
) -> None:
    scripted.objects[KEY] = big.read_bytes()

    def change(request: str) -> None:
        if request.startswith("GET") and sum(one.startswith("GET") for one in scripted.requests) == 2:
            scripted.objects[KEY] = bytes(SIZE)

    scripted.hook = change
    folder = tmp_path / "target"
    with pytest.raises(InfraError, match="changed while it was read") as caught:
        store.download("big", folder / "back")
    assert caught.value.reason == "object_changed"
    assert list(folder.iterdir()) == []


# --- the embedded server --------------------------------------------------------------------------------------------


@pytest.fixture
def place(s3: StorageConfig) -> StorageConfig:
    return replace(s3, uri=f"{s3.uri}/transfer-{uuid4().hex[:12]}")


@pytest.fixture
def real(place: StorageConfig) -> ObjectStore:
    return open_store(place)


def test_a_cap_holds_on_the_real_server(real: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * PART_BYTES))
    began = time.monotonic()
    real.upload(path, "capped", limit=Bandwidth(PART_BYTES))
    assert time.monotonic() - began >= 2, "two parts waited a second each"
    info = real.head("capped")
    assert info is not None
    assert info.size == 3 * PART_BYTES


_UPLOAD = """
import json, sys
from pathlib import Path
from warpbeam.storage import StorageConfig, open_store
from warpbeam.storage.bandwidth import Bandwidth
store = open_store(StorageConfig.from_dict(json.loads(sys.argv[1])))
store.upload(Path(sys.argv[2]), sys.argv[3], limit=Bandwidth(16 << 20))
"""


def test_what_a_killed_upload_left_is_swept_at_the_next_start(
    place: StorageConfig, real: ObjectStore, tmp_path: Path
) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.truncate(60 * PART_BYTES)
    key = f"{layout.checkpoint_prefix('team', 'run', 7, 'a1')}/rank-00000.safetensors"
    uploader = subprocess.Popen([sys.executable, "-c", _UPLOAD, json.dumps(place.to_dict()), str(path), key])
    run = layout.run_prefix("team", "run")
    try:
        deadline = time.monotonic() + 60
        while not list(real.unfinished(run)):
            assert uploader.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.kill(uploader.pid, signal.SIGKILL)
        uploader.wait()
    (left,) = real.unfinished(run)
    assert left.key == key
    assert 0 <= left.age_s < 120
    assert list(real.unfinished("teams/team/runs/ru")) == []

    claim = RunLog(real, "team", "run").claim("a2")
    own = f"{layout.checkpoint_prefix('team', 'run', 8, 'a2')}/rank-00000.safetensors"
    bucket, prefix = place.uri.removeprefix("s3://").split("/", 1)
    s3_client(place).create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{own}")
    assert sweep(real, claim) == [key]
    assert [one.key for one in real.unfinished(run)] == [own]
    real.discard(left)

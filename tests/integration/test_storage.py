"""S3 for real: the same contract as a folder, races, faults, and errors that come in seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore import UNSIGNED
from botocore.client import Config

from tests.integration.scripted_s3 import ScriptedS3
from tests.unit.storage.contract import StoreContract
from warpbeam.errors import InfraError
from warpbeam.storage import ObjectStore, StorageConfig, StoreSetupError, open_store
from warpbeam.storage.check import check_store
from warpbeam.storage.embedded import ensure_server
from warpbeam.storage.s3 import S3Store
from warpbeam.storage.s3_client import ClientSettings

_CANARY = "canary-3f9c1e"


@pytest.fixture
def place(s3: StorageConfig) -> StorageConfig:
    """A prefix of one's own."""
    return replace(s3, uri=f"{s3.uri}/storage-tests/{uuid4().hex[:12]}")


@pytest.fixture
def store(place: StorageConfig) -> ObjectStore:
    return open_store(place)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _CANARY)
    with ScriptedS3() as server:
        yield server


def _scripted_store(server: ScriptedS3, **settings: float) -> S3Store:
    config = StorageConfig(uri="s3://b/p", kind="s3", endpoint_url=server.url)
    return S3Store(config, ClientSettings(**settings))  # type: ignore[arg-type]


class TestS3Store(StoreContract):
    pass


def test_writers_with_clients_of_their_own_append_to_one_log(place: StorageConfig) -> None:
    """No entry is lost or doubled. (The contract has 16 threads race for one key.)"""
    writers = 5
    stores = [S3Store(place, ClientSettings(read_timeout_s=10 + n)) for n in range(writers)]

    def append_one(writer: int) -> int:
        for seq in range(100):
            if stores[writer].put_if_absent(f"log/{seq:012d}", f"{writer}".encode()):
                return seq
        raise AssertionError("no place in 100 entries")

    with ThreadPoolExecutor(writers) as pool:
        places = list(pool.map(append_one, range(writers)))
    assert sorted(places) == list(range(writers))
    for writer, seq in enumerate(places):
        assert stores[0].get(f"log/{seq:012d}") == f"{writer}".encode()


def test_listing_more_than_a_page(store: ObjectStore) -> None:
    keys = [f"many/{n:04d}" for n in range(1100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert [info.key for info in store.list("many/")] == keys


_TRANSFER = """
import hashlib, json, os, resource, sys
from pathlib import Path
from warpbeam.storage import StorageConfig, open_store
config, source, target = StorageConfig.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
store = open_store(config)
store.put("warm", b"up")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.upload(source, "big")
up = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.download("big", target)
with store.open_stream("big") as stream:
    while stream.read(1 << 20):
        pass
down = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([before, up, down]))
"""


def test_100_megabytes_in_bounded_memory_by_another_process(place: StorageConfig, tmp_path: Path) -> None:
    """Also shows that the address alone is enough for another process: it finds the credentials itself."""
    block = os.urandom(1 << 20)
    source = tmp_path / "in"
    with source.open("wb") as file:
        for n in range(100):
            file.write(n.to_bytes(4, "big") + block)
    run = subprocess.run(
        [sys.executable, "-c", _TRANSFER, json.dumps(place.to_dict()), str(source), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    before_kib, up_kib, down_kib = json.loads(run.stdout)
    assert subprocess.run(["cmp", source, tmp_path / "out"]).returncode == 0
    assert up_kib - before_kib < 80 << 10, "an upload holds four parts of 16 MiB at most"
    assert down_kib - before_kib < 100 << 10


def test_a_forked_child_uses_a_connection_of_its_own(store: ObjectStore) -> None:
    store.put("parent", b"1")
    child = os.fork()
    if child == 0:
        try:
            store.put("child", store.get("parent"))
        finally:
            os._exit(0)
    for _ in range(20):
        assert store.get("parent") == b"1"
    os.waitpid(child, 0)
    assert store.get("child") == b"1"


def test_nobody_without_credentials_reads_or_writes(s3: StorageConfig) -> None:
    anonymous = boto3.client(
        "s3", endpoint_url=s3.endpoint_url, region_name="us-east-1", config=Config(signature_version=UNSIGNED)
    )
    for act in (
        lambda: anonymous.put_object(Bucket="warpbeam", Key="x", Body=b""),
        lambda: anonymous.list_objects_v2(Bucket="warpbeam"),
        lambda: anonymous.create_bucket(Bucket="other"),
    ):
        with pytest.raises(anonymous.exceptions.ClientError, match="AccessDenied"):
            act()


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_body_that_breaks_is_read_again(scripted: ScriptedS3) -> None:
    store = _scripted_store(scripted)
    store.put("x", b"0123456789" * 1000)
    scripted.script["GET"].extend(["cut_body", "cut_body"])
    assert store.get("x", 5, 100) == (b"0123456789" * 11)[5:105]
    assert scripted.requests.count("GET /b/p/x") == 3


def test_a_body_that_always_breaks_is_an_error_that_names_the_object(scripted: ScriptedS3) -> None:
    store = _scripted_store(scripted)
    store.put("x", b"0123456789")
    scripted.script["GET"].extend(["cut_body"] * 5)
    with pytest.raises(InfraError, match="s3://b/p/x") as caught:
        store.get("x")
    assert caught.value.reason == "store_unreachable"


def test_a_lost_answer_to_a_conditional_put_looks_like_a_loss_and_reads_as_ours(scripted: ScriptedS3) -> None:
    """The client repeats the request by itself and gets 412: the log must read its nonce (DESIGN 5.6)."""
    store = _scripted_store(scripted)
    scripted.script["PUT"].append("lose_answer")
    assert store.put_if_absent("log/0", b"my nonce") is False
    assert store.get("log/0") == b"my nonce"


def test_a_conflict_is_asked_again(scripted: ScriptedS3) -> None:
    store = _scripted_store(scripted)
    scripted.script["PUT"].extend(["conflict", "conflict"])
    assert store.put_if_absent("log/0", b"1") is True
    scripted.script["PUT"].append("conflict")
    assert store.put_if_absent("log/0", b"2") is False


def test_an_object_that_changes_while_it_is_read(scripted: ScriptedS3) -> None:
    store = _scripted_store(scripted)
    store.put("x", b"a" * (9 << 20))
    with store.open_stream("x") as stream:
        stream.read(10)
        store.put("x", b"b" * (9 << 20))
        with pytest.raises(InfraError, match="changed while it was read"):
            stream.read()


def test_a_stalled_server_is_given_up(scripted: ScriptedS3) -> None:
    store = _scripted_store(scripted, read_timeout_s=0.2, attempts=2)
    store.put("x", b"1")
    scripted.script["GET"].extend(["stall"] * 2)
    begin = time.monotonic()
    with pytest.raises(InfraError) as caught:
        store.get("x")
    assert caught.value.reason == "store_unreachable"
    assert time.monotonic() - begin < 5


# --- check_store ----------------------------------------------------------------------------------------------------


def _refusal(config: StorageConfig, *, within_s: float) -> StoreSetupError:
    begin = time.monotonic()
    with pytest.raises(StoreSetupError) as caught:
        check_store(config)
    assert time.monotonic() - begin < within_s
    assert caught.value.exit_code == 2
    assert caught.value.owner == "platform"
    assert _CANARY not in str(caught.value)
    return caught.value


@pytest.fixture
def as_s3(place: StorageConfig, warpbeam_home: Path, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    """The session's server as a pool would name it: credentials from the environment."""
    server = ensure_server(warpbeam_home)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return replace(place, kind="s3")


def test_check_passes_where_all_is_well(place: StorageConfig, as_s3: StorageConfig) -> None:
    check_store(place)
    check_store(as_s3)
    check_store(as_s3)


def test_check_without_credentials(as_s3: StorageConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    error = _refusal(as_s3, within_s=8)
    assert error.reason == "no_credentials"
    assert "AWS_ACCESS_KEY_ID" in error.fix


def test_check_with_a_wrong_secret(as_s3: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _CANARY)
    assert _refusal(as_s3, within_s=5).reason == "credentials_rejected"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "does not know this access key" in _refusal(as_s3, within_s=5).why


def test_check_of_a_missing_bucket(as_s3: StorageConfig) -> None:
    error = _refusal(replace(as_s3, uri="s3://no-such-bucket/x"), within_s=5)
    assert error.reason == "bucket_missing"
    assert "no-such-bucket" in error.what


def test_check_of_an_endpoint_where_nobody_listens(as_s3: StorageConfig) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        error = _refusal(replace(as_s3, endpoint_url=url), within_s=5)
    assert error.reason == "store_unreachable"
    assert url in error.what


def test_check_of_http_spoken_to_as_https(as_s3: StorageConfig) -> None:
    assert as_s3.endpoint_url is not None
    url = as_s3.endpoint_url.replace("http:", "https:")
    assert _refusal(replace(as_s3, endpoint_url=url), within_s=5).reason == "store_tls"


def test_check_of_a_store_that_ignores_conditions(scripted: ScriptedS3) -> None:
    scripted.honours_conditions = False
    config = StorageConfig(uri="s3://b/p", kind="s3", endpoint_url=scripted.url)
    error = _refusal(config, within_s=5)
    assert error.reason == "no_conditional_put"


def test_check_of_something_that_forgets(scripted: ScriptedS3) -> None:
    scripted.script["PUT"].append("forget")
    error = _refusal(StorageConfig(uri="s3://b/p", kind="s3", endpoint_url=scripted.url), within_s=5)
    assert error.reason == "store_refused"

"""What is kept of an attempt that ended badly, and what must never be in it."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path

import pytest

from tests.unit.record.memory_store import MemoryStore
from warpbeam.doctor.collect import collect
from warpbeam.doctor.diagnose import diagnose
from warpbeam.record import black_box, keys
from warpbeam.record.redact import hidden_values, kept_environment
from warpbeam.train.diagnostics import variables

NAMES = ("support", "sft", "0001-ab")
TOKEN = "canary-in-a-token-41"
PLAIN = "canary without a telling name"
AWS = "AKIA" + "Q" * 16
ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_API_TOKEN": TOKEN,
    "FAVOURITE": PLAIN,
    "TORCH_NOTE": AWS,
    "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"X": "' + PLAIN + '"}}}',
    "HOME": "/root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
}


def unpacked(store: MemoryStore, who: str) -> dict[str, bytes]:
    data = store.objects[keys.black_box(*NAMES, who)]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def test_an_environment_keeps_what_decides_and_no_secret() -> None:
    kept = kept_environment(ENVIRONMENT)
    assert kept["NCCL_SOCKET_IFNAME"] == "eth0"
    assert set(kept) == {"NCCL_SOCKET_IFNAME", "TORCH_NOTE"}
    assert not any(canary in str(kept) for canary in (TOKEN, PLAIN, AWS))


def test_an_ordinary_environment_says_nothing_to_the_doctor() -> None:
    """It is read with the rest of the box, and its names are full of words that mean something elsewhere."""
    usual = variables(Path("/tmp/a"), 0, nccl=True, env={}) | {
        "HF_HUB_OFFLINE": "1",
        "RAY_idle_worker_killing_time_threshold_ms": "15000",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "NCCL_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "WARPBEAM_STEP_DIR": "/tmp/warpbeam-0/launch-run-0001",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
    }
    text = "".join(f"{name}={value}\n" for name, value in kept_environment(usual).items()) + f"{black_box.KILLS}3\n"
    answer = diagnose(collect([("0001-aa/rank-0.env", [text.encode()])]).facts)
    assert (answer.first, answer.others, answer.trouble) == (None, (), False)


def test_values_that_may_be_secret_are_hidden_wherever_they_were_printed() -> None:
    hidden = hidden_values(ENVIRONMENT)
    assert {TOKEN, PLAIN} <= set(hidden)
    assert not {"/root", "C.UTF-8", "eth0"} & set(hidden), "part of ordinary messages"


def test_a_canary_is_in_no_file_of_the_box(tmp_path: Path) -> None:
    said = f"login {TOKEN} as {PLAIN} with {AWS}\n"
    for name in ("rank-0.stacks.txt", "rank-0.nccl.txt", "rank-0.env"):
        (tmp_path / name).write_text(said)
    (tmp_path / "fr_trace_rank_0").write_text(json.dumps({"entries": [], "note": said}))
    (tmp_path / "fr_trace_rank_1").write_bytes(pickle.dumps({"entries": [], "note": TOKEN}, protocol=2) + b"\xff")
    (tmp_path / "fr_trace_rank_2").write_bytes(pickle.dumps({"entries": []}, protocol=4) + b"\xff")
    store = MemoryStore()
    black_box.keep(store, NAMES, "machine-a", black_box.of_machine(tmp_path, hidden_values(ENVIRONMENT)))
    found = unpacked(store, "machine-a")
    assert "fr_trace_rank_1" not in found, "a pickle cannot be mended"
    assert "fr_trace_rank_2" in found
    assert b"login [secret]" in found["rank-0.stacks.txt"]
    for canary in (TOKEN, PLAIN, AWS):
        assert not [name for name, data in found.items() if canary.encode() in data]


def test_the_record_gives_its_last_minutes(tmp_path: Path) -> None:
    store = MemoryStore()
    now = 4e9  # any clock is younger
    store.objects[f"{keys.stream(*NAMES, 'metrics', 'rank-0')}/000000.jsonl"] = (
        b'{"step": 1, "at": 1}\n{"step": 9, "at": %d}\n' % now
    )
    store.objects[f"{keys.stream(*NAMES, 'logs', 'rank-0')}/000000.txt"] = b"first\n"
    store.objects[f"{keys.stream(*NAMES, 'logs', 'rank-0')}/000001.txt"] = f"{TOKEN} last\n".encode()
    parts = dict(black_box.of_record(store, NAMES, [{"rank": 0, "phase": "sync"}], 2, [TOKEN]))
    assert [json.loads(line)["step"] for line in parts["metrics.jsonl"].splitlines()] == [9]
    assert json.loads(parts["heartbeats.jsonl"])["phase"] == "sync"
    assert parts["rank-0.log"] == b"[secret] last\n"


def test_its_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "BOX_BYTES", 10_000)
    for rank in range(20):
        (tmp_path / f"rank-{rank}.stacks.txt").write_text("x" * 5000 + f"end of {rank}")
    parts = black_box.of_machine(tmp_path, [])
    assert len(parts) == 20, "less of each, and something of all"
    assert sum(len(data) for _, data in parts) <= 10_000
    assert all(data.endswith(name.split(".")[0].removeprefix("rank-").encode()) for name, data in parts)
    (tmp_path / "fr_trace_rank_0").write_bytes(b"{" + b" " * 9000)
    assert sum(len(data) for _, data in black_box.of_machine(tmp_path, [])) <= 10_000


def test_nothing_is_kept_of_nothing() -> None:
    store = MemoryStore()
    black_box.keep(store, NAMES, "machine-a", [])
    assert store.objects == {}


def test_the_kernels_word_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "root" / "proc"
    proc.mkdir(parents=True)
    (proc / "vmstat").write_text("nr_free_pages 9\noom_kill 7\n")
    assert black_box.memory_kills(tmp_path / "root") == (7, "machine")
    group = tmp_path / "root" / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert black_box.memory_kills(tmp_path / "root") == (2, "container")
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "rank-0.env").write_text(f"{black_box.KILLS}1\n")
    monkeypatch.setattr(black_box, "memory_kills", lambda: (2, "container"))
    assert b"ended 1 process(es) of this container" in dict(black_box.of_machine(folder, []))["memory.txt"]
    monkeypatch.setattr(black_box, "memory_kills", lambda: (1, "container"))
    assert "memory.txt" not in dict(black_box.of_machine(folder, []))

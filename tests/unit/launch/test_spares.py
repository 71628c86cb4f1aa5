"""What the environment of the ranks' workers holds, and when spare ones are asked for."""

from __future__ import annotations

import sys
import threading

import pytest

from warpbeam.launch import spares


def test_the_hook_is_a_function_that_ray_can_find_by_name() -> None:
    env = spares.runtime_env("zero3", on_cpu=True, env={})["env_vars"]
    module, _, name = env["__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"].rpartition(".")
    assert getattr(sys.modules[module], name) is spares.warm_up


@pytest.mark.parametrize(
    ("strategy", "on_cpu", "has_deepspeed"), [("zero3", True, True), ("ddp", True, False), ("zero3", False, False)]
)
def test_what_is_imported_ahead(strategy: str, on_cpu: bool, has_deepspeed: bool) -> None:
    env = spares.runtime_env(strategy, on_cpu=on_cpu, env={"HF_HOME": "/models"})["env_vars"]
    assert ("deepspeed" in env[spares.MODULES_VARIABLE].split(",")) is has_deepspeed
    assert env["HF_HOME"] == "/models", "read when transformers is imported"


def test_a_module_that_is_not_there_does_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spares.MODULES_VARIABLE, "no_such_module,colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    spares.warm_up()
    assert "colorsys" in sys.modules


@pytest.mark.parametrize(
    ("after_s", "local_rank", "free_gib", "asked"),
    [(0.0, 0, 64, [2]), (None, 0, 64, []), (0.0, 1, 64, []), (0.0, 0, 7, [])],
    ids=["as many as ranks", "switched off", "another rank asks", "too little memory"],
)
def test_who_asks_for_how_many(
    monkeypatch: pytest.MonkeyPatch, after_s: float | None, local_rank: int, free_gib: int, asked: list[int]
) -> None:
    found: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(spares, "_ask_raylet", found.append)
    monkeypatch.setattr(spares, "_free_bytes", lambda: free_gib << 30)
    spares.keep_spares(after_s)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert found == asked


def test_a_raylet_that_does_not_know_the_question_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(count: int) -> None:
        raise RuntimeError("unimplemented")

    monkeypatch.setattr(spares, "_ask_raylet", unknown)
    monkeypatch.setattr(spares, "_free_bytes", lambda: 64 << 30)
    spares._keep(2)
    assert "no spare workers" in capsys.readouterr().out

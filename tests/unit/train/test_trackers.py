"""Optional metric sinks: names, resuming under the same tracker run, and a clear word when a package is missing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from warpbeam.errors import PlatformError
from warpbeam.train.callbacks.prometheus import metric_name
from warpbeam.train.callbacks.trackers import MLflow, WandB


def context(rank: int = 0) -> Any:
    job = SimpleNamespace(team="support", name="sft-1", to_dict=lambda: {"name": "sft-1"})
    return SimpleNamespace(rank=rank, job=job, attempt="0001-ab", step_done=2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("loss_metrics/global_avg_loss", "warpbeam_loss_metrics_global_avg_loss"),
        ("memory/max_reserved(GiB)", "warpbeam_memory_max_reserved_gib"),
        ("mfu(%)", "warpbeam_mfu_percent"),
    ],
)
def test_row_names_become_prometheus_names(ours: str, theirs: str) -> None:
    assert metric_name(ours) == theirs


@pytest.mark.parametrize(("callback", "package"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_missing_package_is_named_with_its_install_command(
    callback: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PlatformError, match=f"needs {package}, which cannot be imported") as caught:
        callback().on_start(context())
    assert caught.value.fix.endswith("as docs/own-code.md says")
    assert callback.requires == (package,)


def test_only_the_first_rank_talks_to_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    callback = WandB()
    callback.on_start(context(rank=1))
    callback.on_step(context(rank=1), {"step": 1, "lr": 0.1})
    callback.on_end(context(rank=1), "done")


class ScriptedWandb(ModuleType):
    """What W&B's module is used for, written down."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.rows: list[tuple[dict[str, float], int]] = []

    def init(self, **settings: Any) -> ScriptedWandb:
        self.begun.append(settings)
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.rows.append((numbers, step))

    def finish(self, exit_code: int) -> None:
        pass


def test_two_attempts_of_a_run_are_one_run_of_the_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = ScriptedWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for _ in range(2):
        callback = WandB()
        callback.on_start(context())
        callback.on_step(context(), {"step": 3, "lr": 0.5, "attempt": "0001-ab"})
        callback.on_end(context(), "done")
    first, second = wandb.begun
    assert first["id"] == second["id"]
    assert first["resume"] == "allow"
    assert wandb.rows[0] == ({"lr": 0.5}, 3)

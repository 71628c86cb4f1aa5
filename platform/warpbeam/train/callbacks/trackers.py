"""Experiment trackers that a team may run already: Weights & Biases and MLflow.

    code: {callbacks: ["warpbeam.train.callbacks.trackers:WandB"]}       # WANDB_* from the environment
    code: {callbacks: ["warpbeam.train.callbacks.trackers:MLflow"]}      # MLFLOW_TRACKING_URI from the environment

Neither package is a dependency: docs/own-code.md says how to install what goes with the tested set. `requires` is
checked when the run is planned. The run's own record stays the truth; a resumed run keeps its run in the tracker.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from warpbeam.errors import PlatformError, UserError
from warpbeam.train.callbacks.base import Callback

if TYPE_CHECKING:
    from warpbeam.train.context import Context
    from warpbeam.train.evaluate import EvalResult


class WandB(Callback):
    """One W&B run for each of our runs; the project is the team."""

    requires = ("wandb",)
    install = "uv pip install -c constraints.txt wandb"
    _run: Any = None

    def on_start(self, ctx: Context) -> None:
        if ctx.rank == 0:
            wandb = _package("wandb")
            name = f"{ctx.job.team}/{ctx.job.name}"
            run_id = hashlib.sha256(name.encode()).hexdigest()[:16]
            self._run = wandb.init(
                project=ctx.job.team, name=ctx.job.name, id=run_id, resume="allow", config=ctx.job.to_dict()
            )

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        if self._run is not None:
            self._run.log(_numbers(row), step=row["step"])

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        if self._run is not None:
            self._run.log({"validation_metrics/loss": result.loss}, step=ctx.step_done)

    def on_end(self, ctx: Context, state: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0)


class MLflow(Callback):
    """One MLflow run for each of our runs; the experiment is the team."""

    requires = ("mlflow",)
    install = "uv pip install -c constraints.txt mlflow-skinny"
    _client: Any = None

    def on_start(self, ctx: Context) -> None:
        if ctx.rank != 0:
            return
        tracking = _package("mlflow")
        try:
            self._client = tracking.MlflowClient()
            found = self._client.get_experiment_by_name(ctx.job.team)
            experiment = found.experiment_id if found else self._client.create_experiment(ctx.job.team)
        except Exception as error:
            raise UserError(
                "MLflow cannot be used",
                why=f"{type(error).__name__}: {error}",
                fix="MLFLOW_TRACKING_URI names a tracking server (http://...), or a folder (file:///...) together with "
                "MLFLOW_ALLOW_FILE_STORE=true; a database needs the full mlflow package",
                reason="tracker",
            ) from error
        earlier = self._client.search_runs([experiment], f"tags.warpbeam_run = '{ctx.job.name}'", max_results=1)
        if earlier:
            self._run_id = earlier[0].info.run_id
        else:
            tags = {"warpbeam_run": ctx.job.name, "mlflow.runName": ctx.job.name}
            self._run_id = self._client.create_run(experiment, tags=tags).info.run_id
            for name, value in _settings(ctx.job.to_dict()):
                self._client.log_param(self._run_id, name, value)

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        self._log(_numbers(row), row["step"])

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        self._log({"validation_metrics/loss": result.loss}, ctx.step_done)

    def on_end(self, ctx: Context, state: str) -> None:
        if self._client is not None:
            self._client.set_terminated(self._run_id, "FINISHED" if state == "done" else "KILLED")

    def _log(self, numbers: dict[str, float], step: int) -> None:
        if self._client is not None:
            for name, value in numbers.items():
                # MLflow's names take neither parentheses nor percent signs.
                clean = name.replace("(", ".").replace(")", "").replace("%", "percent")
                self._client.log_metric(self._run_id, clean, value, step=step)


def _settings(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`train.lr` and its value, and so on for all that a job says; its environment is nobody else's business."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            if name not in ("env", "config"):
                yield from _settings(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", str(value)[:500]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PlatformError(
            f"code.callbacks needs {name}, which cannot be imported where the ranks run",
            why=f"{type(error).__name__}: {error}",
            fix="install it in the image or environment as docs/own-code.md says",
            reason="missing_package",
        ) from error

"""Metrics for a Prometheus server to scrape: `code: {callbacks: ["warpbeam.train.callbacks.prometheus:Prometheus"]}`.

Rank 0 answers on WARPBEAM_PROMETHEUS_PORT (default 9464), on loopback unless WARPBEAM_PROMETHEUS_HOST says otherwise.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpbeam.train.callbacks.base import Callback

if TYPE_CHECKING:
    from warpbeam.train.context import Context
    from warpbeam.train.evaluate import EvalResult

DEFAULT_PORT = 9464
BUCKETS = "warpbeam_bucket_seconds"
"""Where rank 0's time went so far, by the label `bucket`."""
log = logging.getLogger(__name__)


class Prometheus(Callback):
    """A gauge for each number of a row, labelled with team, run and attempt. A taken port moves to a free one."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}
        self._server: Any = None
        self.port: int | None = None

    def on_start(self, ctx: Context) -> None:
        if ctx.rank != 0:
            return
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry = CollectorRegistry()
        self._labels = {"team": ctx.job.team, "run": ctx.job.name, "attempt": ctx.attempt}
        words = "Seconds of rank 0 by what it was doing."
        self._buckets = Gauge(BUCKETS, words, [*self._labels, "bucket"], registry=self._registry)
        host = os.environ.get("WARPBEAM_PROMETHEUS_HOST", "127.0.0.1")
        wanted = int(os.environ.get("WARPBEAM_PROMETHEUS_PORT", DEFAULT_PORT))
        try:
            self._server, _ = start_http_server(wanted, host, self._registry)
        except OSError:
            self._server, _ = start_http_server(0, host, self._registry)
        self.port = self._server.server_port
        log.info("metrics for Prometheus at http://%s:%d/metrics", host, self.port)
        ctx.record.event("prometheus", host=host, port=self.port, wanted=wanted)

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float):
                self._set(name, value)
        if self._server is not None:
            for bucket, seconds in ctx.buckets_s().items():
                self._buckets.labels(**self._labels, bucket=bucket).set(seconds)

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        self._set("validation_metrics/loss", result.loss)

    def on_end(self, ctx: Context, state: str) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _set(self, name: str, value: float) -> None:
        if self._server is None:  # another rank, or the evaluation before the first step
            return
        if name not in self._gauges:
            from prometheus_client import Gauge

            metric = metric_name(name)
            self._gauges[name] = Gauge(metric, name, list(self._labels), registry=self._registry)
        self._gauges[name].labels(**self._labels).set(value)


def metric_name(name: str) -> str:
    """A row's name as Prometheus allows it: `memory/max_reserved(GiB)` -> `warpbeam_memory_max_reserved_gib`."""
    return "warpbeam_" + re.sub(r"[^a-z0-9]+", "_", name.replace("%", "percent").lower()).strip("_")

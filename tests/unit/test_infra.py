"""infra/: every query parses and asks for numbers that somebody gives, every alert has a runbook that is there."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml

from warpbeam.kube.network_policy import METRICS_PORTS, RUN_METRICS_PORT
from warpbeam.record.phases import Phase
from warpbeam.train.callbacks.prometheus import BUCKETS, DEFAULT_PORT, metric_name

ROOT: Final = Path(__file__).parents[2]
INFRA: Final = ROOT / "infra"
ROWS: Final = (
    "step",
    "loss_metrics/global_avg_loss",
    "validation_metrics/loss",
    "throughput/global_tps",
    "mfu(%)",
    "time_metrics/data_loading(%)",
    "memory/max_reserved(GiB)",
    "memory/max_rss(GiB)",
)
OTHERS: Final = {
    "kuberay_job_deployment_status",
    "kueue_pending_workloads",
    "kube_deployment_status_replicas_available",
    "kube_pod_container_status_last_terminated_reason",
    "kube_node_status_condition",
    "kube_node_status_capacity",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
}
"""Read in the exporters' sources or lists: KubeRay 1.6.2, Kueue 0.17, kube-state-metrics, DCGM exporter."""
KNOWN: Final = {*map(metric_name, ROWS), BUCKETS, *OTHERS}
KUBERAY_STATES: Final = {"Initializing", "Running", "Complete", "Failed", "Suspended", "Waiting", "Retrying"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((INFRA / "monitoring/rules.yaml").read_text())
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((INFRA / "monitoring/training.json").read_text())
    return board


def queries() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    yield from ((panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"])


def selectors(query: str) -> list[tuple[str, dict[str, str]]]:
    """(metric, label -> value) of everything that a query reads."""
    found = {}

    def see(node: Any) -> None:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            found[str(selector)] = (selector.name, {each.name: each.value for each in selector.matchers.matchers})

    promql_parser.walk(promql_parser.parse(query), see)
    return list(found.values())


@pytest.mark.parametrize(("name", "query"), list(queries()))
def test_a_query_asks_for_what_there_is(name: str, query: str) -> None:
    read = selectors(query)
    assert read, "it reads something"
    for metric, labels in read:
        assert metric in KNOWN, metric
        if state := labels.get("deployment_status"):
            assert state in KUBERAY_STATES
        if bucket := labels.get("bucket"):
            assert bucket in set(Phase)


def test_a_query_that_is_none_is_found() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("sum by (run (warpbeam_step)")


def test_every_alert_has_a_runbook() -> None:
    for rule in rules():
        page = ROOT / rule["annotations"]["runbook_url"]
        assert page.is_file(), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_our_numbers_are_those_of_a_row() -> None:
    """The row's own names, as the engine writes them."""
    written = "".join(path.read_text() for path in sorted((ROOT / "platform/warpbeam/train").glob("*.py")))
    for name in ROWS:
        assert f'"{name}"' in written, name


def test_panels_have_a_place_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


def test_what_a_dashboard_must_show_is_there() -> None:
    titles = " ".join(panel["title"].lower() for panel in dashboard()["panels"])
    for word in ("loss", "tokens", "mfu", "data", "checkpoint", "goodput", "memory", "attempts"):
        assert word in titles


def test_the_operator_has_the_gates_that_manifests_need() -> None:
    values = yaml.safe_load((INFRA / "kuberay/values.yaml").read_text())
    gates = {gate["name"]: gate["enabled"] for gate in values["featureGates"]}
    assert gates["RayCronJob"]
    assert gates["RayMultiHostIndexing"]
    assert values["image"]["tag"] == "v1.6.2"


def test_prometheus_may_reach_what_it_is_told_to_scrape() -> None:
    monitor = yaml.safe_load((INFRA / "monitoring/pods.yaml").read_text())
    ports = {endpoint["portNumber"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert ports <= set(METRICS_PORTS)
    assert RUN_METRICS_PORT == DEFAULT_PORT


@pytest.mark.parametrize("name", ["train", "serve"])
def test_a_dockerfile_runs_only_scripts_and_ends_without_root(name: str) -> None:
    text = (INFRA / f"images/{name}.Dockerfile").read_text()
    steps = re.findall(r"^RUN (?:--mount=\S+ )*(.*)$", text, re.MULTILINE)
    assert steps
    for step in steps:
        script = step.split()[0].removeprefix("/build/")
        assert (ROOT / script).is_file(), step
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users[-1] == "1000:1000"

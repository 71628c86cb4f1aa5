from __future__ import annotations

from typing import Any

from tests.unit.kube.orders import order
from warpbeam.kube.drift import differences, to_apply
from warpbeam.kube.render import render


def job() -> dict[str, Any]:
    return dict(render(order()).documents[-1])


def live(**spec: Any) -> dict[str, Any]:
    found = job()
    server = {"resourceVersion": "7", "uid": "u", "generation": 3, "managedFields": [{"manager": "x"}]}
    found["metadata"] = {**found["metadata"], **server}
    return {**found, "spec": {**found["spec"], **spec}, "status": {"jobDeploymentStatus": "Running"}}


def test_what_the_server_keeps_and_what_was_handed_over_is_no_difference() -> None:
    assert differences(live(suspend=False, backoffLimit=1), live()) == []


def test_a_changed_field_is_shown_with_its_object() -> None:
    lines = differences(live(), live(activeDeadlineSeconds=5))
    assert lines[0] == "--- live/RayJob/tiny"
    assert "+  activeDeadlineSeconds: 5" in lines


def test_what_is_not_there_is_all_new() -> None:
    lines = differences(None, live())
    assert "+kind: RayJob" in lines
    assert not [line for line in lines if line.startswith("-") and not line.startswith("---")]


def test_the_order_of_keys_means_nothing() -> None:
    turned = live()
    turned["spec"] = dict(reversed(turned["spec"].items()))
    assert differences(turned, live()) == []


def test_fields_that_others_set_are_not_applied_to_what_is_there() -> None:
    assert to_apply(job(), None) == job()
    assert {"suspend", "backoffLimit"} & set(to_apply(job(), live())["spec"]) == set()
    assert "suspend" in job()["spec"], "the manifest itself is not touched"

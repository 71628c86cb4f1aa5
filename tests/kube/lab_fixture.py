"""The laboratory of a test session: it starts with the first test that asks, and ends however the session ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.kube import overlay
from tests.kube.lab import kueue
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import default_place
from tests.kube.lab.programs import lacking
from tests.kube.lab.session import kept

REQUIRE = "WARPBEAM_REQUIRE_KUBE"
"""Set to 1, a laboratory that cannot start is a failure; else its tests are skipped with the reason."""

USE = "WARPBEAM_KUBE_LAB"
"""The folder of a running laboratory (`python -m tests.kube.lab up`) for the tests to use instead of their own."""


@pytest.fixture(scope="session")
def lab() -> Iterator[Laboratory]:
    """Three nodes with eight pretended GPUs each, and KubeRay's operator: one more than a run needs."""
    if reasons := lacking():
        text = "no Kubernetes laboratory: " + "; ".join(reasons)
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(text)
        pytest.skip(text)
    if USE in os.environ:  # a person's, by which failures can be looked at; it stays
        yield Laboratory(default_place())
        return
    with kept(default_place("tests"), say=lambda text: print(text, file=sys.stderr)) as found:
        yield found


@pytest.fixture(scope="session")
def api(lab: Laboratory) -> Iterator[Api]:
    """The administrator's connection to it."""
    found = lab.api()
    overlay.install(found)
    yield found
    found.close()


@pytest.fixture(scope="session")
def with_kueue(api: Api) -> None:
    """Kueue besides, from the first test that asks."""
    if not kueue.is_installed(api):
        kueue.install(api)

"""Fixtures of every test against a real API server, alone or in the laboratory; and the table of what they measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.integration.s3_fixture import s3, warpbeam_home
from tests.kube.apiserver import apiserver
from tests.kube.lab_fixture import api, lab, with_kueue

__all__ = ["api", "apiserver", "lab", "s3", "warpbeam_home", "with_kueue"]

ROWS: Final = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Write a line into the table that is printed at the end, of tests that passed too."""
    rows = request.config.stash.setdefault(ROWS, [])
    name = request.node.name.removeprefix("test_").replace("_", " ")
    return lambda text: rows.append((name, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("measured")
    last = ""
    for name, text in rows:
        if name != last:
            terminalreporter.line(name)
        last = name
        terminalreporter.line(f"    {text}")

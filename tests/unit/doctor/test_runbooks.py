"""infra/runbooks/ is what `make runbooks` writes: the rules are the one source."""

from __future__ import annotations

from pathlib import Path

from warpbeam.doctor.runbooks import pages

FOLDER = Path(__file__).parents[3] / "infra" / "runbooks"


def test_the_runbooks_are_those_of_the_rules() -> None:
    written = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert written == pages(), "run `make runbooks`"

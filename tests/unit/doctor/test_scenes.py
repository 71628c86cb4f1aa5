"""Whole scenes in the words of the programs that print them: the doctor names kind and owner, or says nothing.

scenes.jsonl has the form that `python -m tests.benchmarks.doctor_accuracy` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.doctor_accuracy import examine, load

SCENES = load(Path(__file__).with_name("scenes.jsonl"))


@pytest.mark.parametrize("scene", SCENES, ids=[scene["id"] for scene in SCENES])
def test_a_scene_is_understood(scene: dict[str, Any]) -> None:
    result = examine(scene, machine_only=False)
    assert (result.kind, result.owner if result.kind else None) == (scene["kind"], scene["owner"])
    assert not result.wrong_blame

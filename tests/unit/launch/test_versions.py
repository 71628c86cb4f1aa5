from __future__ import annotations

import re
from pathlib import Path

from warpbeam.launch.versions import TESTED, compare, installed, known_conflicts

ROOT = Path(__file__).parents[3]


def test_the_tested_set_is_that_of_constraints_txt() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name: pins[name] for name in TESTED if name != "python"} == {
        name: version for name, version in TESTED.items() if name != "python"
    }


def test_what_is_installed_here_has_no_known_conflict() -> None:
    assert known_conflicts(installed()) == []


def test_a_difference_is_said() -> None:
    rows = {row.name: row for row in compare({"python": "3.12.1", "ray": "2.58.0", "torch": "2.13.0+cpu"})}
    assert rows["python"].remark == "not the tested version"
    assert rows["torch"].remark == ""
    assert "only needed to train" in rows["deepspeed"].remark


def test_known_conflicts() -> None:
    assert known_conflicts({"python": "3.10.2"})
    assert known_conflicts({"transformers": "5.24.0"})
    assert known_conflicts({"driver": "550.54", "cuda": "13.0"})
    assert known_conflicts({"boto3": "1.44.8", "botocore": "1.43.0"})
    assert not known_conflicts({"driver": "580.65", "cuda": "13.0", "python": "3.11.7"})

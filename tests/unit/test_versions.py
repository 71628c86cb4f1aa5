"""The tested set beside what is installed."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.specifiers import SpecifierSet

from warpbeam.versions import KNOWN_BAD, OF_THE_MACHINE, TESTED, check_versions, installed_versions, known_conflicts

ROOT = Path(__file__).parents[2]


def status(name: str, **installed: str) -> tuple[str, str]:
    rows = {row.name: row for row in check_versions(TESTED | installed)}
    return rows[name].status, rows[name].note


def test_the_tested_set_is_that_of_constraints_txt() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    packages = {name: version for name, version in TESTED.items() if name not in OF_THE_MACHINE}
    assert {name: pins[name] for name in packages} == packages


def test_the_tested_set_is_what_this_environment_has() -> None:
    rows = check_versions(installed_versions())
    others = {row.name for row in rows if row.status != "tested"}
    assert others <= {"driver"}, "a CPU machine has no driver"
    assert known_conflicts(installed_versions()) == []


def test_statuses() -> None:
    assert status("torch") == ("tested", "")
    assert status("torch", torch="2.13.0+cu130")[0] == "tested", "a build's suffix is not another version"
    assert status("torch", torch="2.14.1") == ("untested", "newer than tested")
    assert status("torch", torch="2.12.0") == ("untested", "older than tested")
    assert status("python", python="3.11.9")[0] == "tested"
    assert status("python", python="3.12.1")[0] == "untested"
    assert status("driver", driver="590.12.01")[0] == "tested"
    assert status("ray", ray="3.0.0.dev0") == ("untested", "newer than tested")
    assert status("numpy", numpy="unknown")[0] == "untested"


def test_a_laptop_without_torch_is_no_mistake() -> None:
    rows = {row.name: row for row in check_versions({"python": "3.11.4", "boto3": "1.44.8", "botocore": "1.44.8"})}
    assert (rows["torch"].status, rows["torch"].note) == ("missing", "not installed: only needed to train and serve")
    assert (rows["pydantic"].status, rows["pydantic"].note) == ("missing", "not installed")
    assert rows["driver"].note == "none here"
    assert known_conflicts({"python": "3.11.4", "boto3": "1.44.8", "botocore": "1.44.8"}) == []


def test_what_does_not_work_together() -> None:
    assert status("driver", driver="535.104.05")[0] == "bad"
    assert status("cuda", driver="535.104.05")[0] == "bad", "both of a pair are marked"
    (said,) = known_conflicts(TESTED | {"driver": "535.104.05"})
    assert said.startswith("cuda 13.0 with driver 535.104.05: torch finds no GPU")
    assert status("pyarrow", ray="2.44.0", pyarrow="20.0.0")[0] == "bad"
    assert status("pyarrow", ray="2.44.0", pyarrow="19.0.0")[0] == "untested"
    assert known_conflicts({"python": "3.10.2"})
    assert known_conflicts({"transformers": "4.57.1"})
    (said,) = known_conflicts({"transformers": "5.24.0", "torch": "2.13.0"})
    assert said.startswith("transformers 5.24.0 with no accelerate: ")
    assert known_conflicts({"boto3": "1.44.8", "botocore": "1.43.0"})


def test_the_table_is_well_formed_and_the_tested_set_is_in_none_of_it() -> None:
    assert known_conflicts(TESTED) == []
    for conflict in KNOWN_BAD:
        assert set(conflict.versions) <= set(TESTED)
        assert all(SpecifierSet(allowed) for allowed in conflict.versions.values() if allowed)
        assert conflict.what_happens
        assert conflict.source

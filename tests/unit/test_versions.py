"""The tested set beside what is installed."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from warpbeam.versions import KNOWN_BAD, TESTED, check_versions, installed_versions, to_dict, works


def status(name: str, **installed: str | None) -> tuple[str, str]:
    rows = {row.name: row for row in check_versions(TESTED | installed)}
    return rows[name].status, rows[name].note


def test_the_tested_set_is_what_this_environment_has() -> None:
    rows = check_versions(installed_versions())
    assert {row.name: row.installed for row in rows if row.status not in ("tested", "absent")} == {}
    assert works(rows)


def test_statuses() -> None:
    assert status("torch") == ("tested", "")
    assert status("torch", torch="2.13.0+cu130")[0] == "tested", "a build's suffix is not another version"
    assert status("torch", torch="2.14.1") == ("untested", "newer than tested")
    assert status("torch", torch="2.12.0") == ("untested", "older than tested")
    assert status("python", python="3.11.9")[0] == "tested"
    assert status("python", python="3.12.1")[0] == "untested"
    assert status("driver", driver="590.12.01")[0] == "tested"
    assert status("torch", torch=None)[0] == "missing"
    assert status("driver", driver=None)[0] == "absent"
    assert status("ray", ray="3.0.0.dev0") == ("untested", "newer than tested")
    assert status("ray", ray="unknown")[0] == "untested"


def test_pairs_that_do_not_work() -> None:
    kind, note = status("driver", driver="535.104.05")
    assert kind == "bad"
    assert "too old for CUDA 13" in note
    assert status("cuda", driver="535.104.05")[0] == "bad", "both of a pair are marked"
    assert status("ray", ray="2.44.0", pyarrow="20.0.0")[0] == "bad"
    assert status("ray", ray="2.44.0", pyarrow="19.0.0")[0] == "untested"
    rows = check_versions(TESTED | {"driver": "535"})
    assert not works(rows)
    assert to_dict(rows)["ok"] is False


def test_the_tested_set_has_no_bad_pair_and_the_table_is_well_formed() -> None:
    assert works(check_versions(TESTED))
    for pair in KNOWN_BAD:
        assert {pair.first, pair.second} <= set(TESTED)
        SpecifierSet(pair.first_range), SpecifierSet(pair.second_range)
        assert pair.what_happens
        assert pair.source

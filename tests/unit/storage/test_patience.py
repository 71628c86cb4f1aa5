"""Waiting for a store that is away, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity.nap

from tests.unit.storage.contract import StoreContract
from warpbeam.errors import InfraError, PlatformError, WarpbeamError
from warpbeam.storage import ObjectStore
from warpbeam.storage.local import LocalStore
from warpbeam.storage.patience import PatientStore, patiently


class Store:
    """Fails so many times."""

    def __init__(self, failures: int, error: WarpbeamError) -> None:
        self.left, self.error, self.calls = failures, error, 0

    def work(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def test_a_store_that_comes_back_is_waited_for() -> None:
    store, pauses, told = Store(6, InfraError("away", reason="store_unreachable")), list[float](), list[str]()
    done = patiently(store.work, sleep=pauses.append, on_trouble=lambda error: told.append(error.what))
    assert done == "done"
    assert store.calls == 7
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert told == ["away"] * 6


@pytest.mark.parametrize(
    "error",
    [
        InfraError("disk full", reason="disk_full"),
        InfraError("a newer attempt", reason="fenced"),
        PlatformError("refused", reason="store_refused"),
    ],
)
def test_what_does_not_pass_is_raised_at_once(error: WarpbeamError) -> None:
    store = Store(1, error)
    with pytest.raises(type(error)):
        patiently(store.work, sleep=lambda seconds: None)
    assert store.calls == 1


def test_patience_has_an_end() -> None:
    store = Store(10**9, InfraError("away", reason="store_failed"))
    with pytest.raises(InfraError, match="away"):
        patiently(store.work, limit_s=0.05, sleep=lambda seconds: None)


AWAY_AT = {"get", "put", "put_if_absent", "upload", "download", "head", "list", "list_dirs", "delete", "unfinished"}


class Flickering(LocalStore):
    """Away at every other call."""

    away = False

    def __getattribute__(self, name: str) -> Any:
        if name in AWAY_AT:
            self.away = not self.away
            if self.away:
                raise InfraError("away", reason="store_unreachable")
        return super().__getattribute__(name)


class TestPatientStore(StoreContract):
    """A store that is away at every other call is, to whoever is patient, a store like any other."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
        monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
        return PatientStore(Flickering(tmp_path / "store"))


def test_whoever_wants_an_end_is_told_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    store = PatientStore(Flickering(tmp_path), on_trouble=lambda error: told.append(error.what))
    store.give_up()
    with pytest.raises(InfraError, match="away"):
        store.put("key", b"")
    assert told == []

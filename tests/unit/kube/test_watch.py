"""Following through whatever a network does, against a server that is stepped by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from warpbeam.errors import PlatformError
from warpbeam.kube.client_errors import Dropped, Gone
from warpbeam.kube.watch import LogPlace, Patience, follow, follow_log

Object = dict[str, Any]


class Event(NamedTuple):
    type: str
    object: Object


class Listing(NamedTuple):
    items: list[Object]
    version: str


def thing(name: str, version: int, **status: Any) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": status}


class Script:
    """Answers by list; an exception among them is raised. `asked` tells what was asked, and from where."""

    def __init__(
        self,
        *,
        lists: Sequence[Listing | Exception] = (),
        watches: Sequence[Sequence[Event | Exception] | Exception] = (),
        logs: Sequence[Sequence[bytes | Exception] | Exception] = (),
        pods: Sequence[Object | None] = (),
    ) -> None:
        self._answers = {"list": list(lists), "watch": list(watches), "logs": list(logs), "get": list(pods)}
        self.asked: list[str] = []

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Any:
        return self._next("list", "")

    def watch(self, kind: str, namespace: str, version: str, *, labels: str = "", fields: str = "") -> Iterator[Any]:
        return self._stream(self._next("watch", version))

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        return self._next("get", "")

    def logs(self, pod: str, namespace: str, container: str, *, follow: bool, since: str = "") -> Iterator[bytes]:
        return self._stream(self._next("logs", since))

    def _next(self, what: str, where: str) -> Any:
        self.asked.append(f"{what} {where}".strip())
        answer = self._answers[what].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _stream(self, answers: Sequence[Any]) -> Iterator[Any]:
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer


def patience(troubles: list[str] | None = None) -> Patience:
    return Patience((troubles if troubles is not None else []).append, sleep=lambda s: None, give_up_s=60.0)


def names_of(source: Script, count: int, troubles: list[str] | None = None) -> list[list[str]]:
    following = follow(source, "Pod", "ns", patience=patience(troubles))
    return [sorted(next(following)) for _ in range(count)]


def test_a_listing_and_then_every_change() -> None:
    script = Script(
        lists=[Listing([thing("a", 1)], "5")],
        watches=[[Event("ADDED", thing("b", 6)), Event("DELETED", thing("a", 7)), Event("MODIFIED", thing("b", 8))]],
    )
    assert names_of(script, 4) == [["a"], ["a", "b"], ["b"], ["b"]]
    assert script.asked == ["list", "watch 5"]


def test_a_watch_that_ends_goes_on_where_it_was() -> None:
    bookmark = Event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    script = Script(
        lists=[Listing([], "5")],
        watches=[[Event("ADDED", thing("a", 6)), bookmark], [], [Event("ADDED", thing("b", 21))]],
    )
    assert names_of(script, 3) == [[], ["a"], ["a", "b"]]
    assert script.asked == ["list", "watch 5", "watch 20", "watch 20"]


def test_a_dropped_connection_is_taken_up_again_without_a_word() -> None:
    troubles: list[str] = []
    script = Script(
        lists=[Listing([], "5")],
        watches=[[Event("ADDED", thing("a", 6)), Dropped("reset")], [Event("ADDED", thing("b", 7))]],
    )
    assert names_of(script, 3, troubles) == [[], ["a"], ["a", "b"]]
    assert script.asked[-1] == "watch 6"
    assert troubles == []


def test_a_server_that_stays_away_is_told_once_and_given_up_in_the_end() -> None:
    troubles: list[str] = []
    away = [Dropped("nobody there")] * 4
    script = Script(lists=[*away, Listing([thing("a", 1)], "5")])
    assert names_of(script, 1, troubles) == [["a"]]
    assert troubles == ["nobody there; trying again"]
    hopeless = Patience(sleep=lambda s: None, give_up_s=0.0)
    with pytest.raises(Dropped):
        next(follow(Script(lists=away), "Pod", "ns", patience=hopeless))


def test_hours_without_a_change_are_no_absence() -> None:
    clock = iter([0.0, 9_000.0, 9_001.0, 20_000.0, 20_001.0, 20_005.0, 20_006.0])
    script = Script(lists=[Dropped("once"), Dropped("again"), Listing([thing("a", 1)], "5")])
    patient = Patience(sleep=lambda s: None, give_up_s=600.0, now=lambda: next(clock))
    assert sorted(next(follow(script, "Pod", "ns", patience=patient))) == ["a"]


def test_an_absence_is_counted_from_its_first_failure() -> None:
    clock = iter([0.0, 9_000.0, 9_001.0, 9_050.0, 9_560.0, 9_601.0, 9_602.0])
    script = Script(lists=[Dropped("nobody there")] * 4)
    patient = Patience(sleep=lambda s: None, give_up_s=600.0, now=lambda: next(clock))
    with pytest.raises(Dropped):
        next(follow(script, "Pod", "ns", patience=patient))
    assert len(script.asked) == 3


def test_forgotten_changes_are_made_up_by_a_listing() -> None:
    script = Script(
        lists=[Listing([thing("a", 1), thing("b", 2)], "5"), Listing([thing("b", 2), thing("c", 50)], "60")],
        watches=[[Gone("410")], [Event("DELETED", thing("b", 61))]],
    )
    assert names_of(script, 3) == [["a", "b"], ["b", "c"], ["c"]]
    assert script.asked == ["list", "watch 5", "list", "watch 60"]


def test_a_right_that_was_there_comes_back_with_the_servers_roles() -> None:
    lost = PlatformError("no right", reason="kube_forbidden")
    script = Script(lists=[Listing([], "5")], watches=[lost, [Event("ADDED", thing("a", 6))]])
    assert names_of(script, 2) == [[], ["a"]]


def test_a_missing_right_is_not_asked_for_again() -> None:
    script = Script(lists=[PlatformError("no right", reason="kube_forbidden")])
    with pytest.raises(PlatformError):
        next(follow(script, "Pod", "ns", patience=patience()))
    assert script.asked == ["list"]


def pod(state: str) -> Object:
    return {"status": {"containerStatuses": [{"name": "c", "state": {state: {}}}]}}


def test_a_log_goes_on_where_it_broke_off() -> None:
    one, two = b"2026-01-01T00:00:00.1Z one", b"2026-01-01T00:00:00.15Z two"
    twin, three = b"2026-01-01T00:00:00.15Z two", b"2026-01-01T00:00:00.2Z three"
    script = Script(
        logs=[[one, two, Dropped("reset")], Dropped("still away"), [two, twin], [twin, twin, three]],
        pods=[pod("running"), pod("terminated")],
    )
    assert list(follow_log(script, "p", "ns", "c", patience=patience())) == [b"one", b"two", b"two", b"three"]
    since = "2026-01-01T00:00:00.15Z"
    assert script.asked == ["logs", f"logs {since}", f"logs {since}", "get", f"logs {since}", "get"]


def test_a_pod_that_has_gone_has_said_all() -> None:
    script = Script(logs=[[b"2026-01-01T00:00:00Z x"]], pods=[None])
    assert list(follow_log(script, "p", "ns", "c", patience=patience())) == [b"x"]


def test_times_compare_by_their_fraction() -> None:
    place = LogPlace()
    assert place.take(b"2026-01-01T00:00:00.9Z a") == b"a"
    place.reopen()
    assert place.take(b"2026-01-01T00:00:00.9Z a") is None
    assert place.take(b"2026-01-01T00:00:00.91Z b") == b"b"
    assert place.take(b"2026-01-01T00:00:00.905Z old") is None
    assert place.take(b"2026-01-01T00:00:01Z c with spaces") == b"c with spaces"

"""Follow objects and logs through everything that a network does to a long connection.

A watch ends every few minutes by the server's will, breaks with the connection, and expires when nobody has looked for
long (410): each time it goes on where it was, or lists again. Whoever follows sees all objects of its selection after
every change, so that nothing that was missed meanwhile stays missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from warpbeam.errors import PlatformError, WarpbeamError
from warpbeam.kube.client_errors import Dropped, Gone

if TYPE_CHECKING:
    from warpbeam.kube.client import Event, Listing

T = TypeVar("T")
Object = Mapping[str, Any]
Objects = Mapping[str, Object]
"""By name."""
GIVE_UP_S: Final = 600.0
"""How long the API server may be away."""
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 15.0
_CONNECTED_S: Final = 60.0
"""A conversation that lasted longer was one: what ends it is another absence."""


class Source(Protocol):
    """What is asked of a cluster here."""

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Listing:
        """All objects now."""

    def watch(self, kind: str, namespace: str, version: str, *, labels: str = "", fields: str = "") -> Iterator[Event]:
        """Changes since a version."""

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """One object."""

    def logs(self, pod: str, namespace: str, container: str, *, follow: bool, since: str = "") -> Iterator[bytes]:
        """Lines of a container with their times."""


class Patience:
    """Asks again while the server is away, with growing pauses; says so once each time it goes.

    Args:
        give_up_s: how long it may be away, counted from the first failure: a question may take hours until then.
    """

    def __init__(
        self,
        on_trouble: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
        give_up_s: float = GIVE_UP_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_trouble = on_trouble
        self._give_up_s = give_up_s
        self._now = now
        self._asked_at = 0.0
        self._away_since = 0.0
        self._retrying = Retrying(
            retry=retry_if_exception_type(Dropped),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
            stop=self._is_enough,
            sleep=sleep,
            before_sleep=self._tell,
            reraise=True,
        )

    def ask(self, question: Callable[[], T]) -> T:
        """The answer.

        Raises:
            Dropped: there was none in `give_up_s`.
        """

        def asked() -> T:
            self._asked_at = self._now()
            return question()

        return self._retrying(asked)

    def _is_enough(self, state: RetryCallState) -> bool:
        failed_at = self._now()
        if state.attempt_number == 1 or failed_at - self._asked_at > _CONNECTED_S:
            self._away_since = failed_at
        return failed_at - self._away_since >= self._give_up_s

    def _tell(self, state: RetryCallState) -> None:
        """A watch that breaks now and then is nothing to talk about; a server that does not come back at once is."""
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 2 and isinstance(error, WarpbeamError):
            self._on_trouble(f"{error.what}; trying again")


class _Follower:
    """The place in one stream of changes."""

    def __init__(self, source: Source, kind: str, namespace: str, labels: str, fields: str) -> None:
        self._source = source
        self._where = (kind, namespace)
        self._select = {"labels": labels, "fields": fields}
        self._version: str | None = None
        self._events: Iterator[Event] | None = None
        self.objects: dict[str, Object] = {}

    def step(self) -> None:
        """Wait for one change, or for the first listing, and take it in."""
        try:
            if self._version is None:
                self._list()
                return
            while not self._take_next(self._version):
                pass
        except Gone:
            self._version, self._events = None, None
            self._list()
        except Dropped:
            self._events = None
            raise
        except PlatformError as error:
            # A server that has just started again may not have read its Roles yet.
            if error.reason != "kube_forbidden" or self._version is None:
                raise
            self._events = None
            raise Dropped(error.what, fix=error.fix) from error

    def _list(self) -> None:
        listing = self._source.list(*self._where, **self._select)
        self.objects = {item["metadata"]["name"]: item for item in listing.items}
        self._version = listing.version

    def _take_next(self, version: str) -> bool:
        """Whether something has changed."""
        if self._events is None:
            self._events = self._source.watch(*self._where, version, **self._select)
        event = next(self._events, None)
        if event is None:
            self._events = None
            return False
        metadata = event.object["metadata"]
        self._version = metadata["resourceVersion"]
        if event.type == "BOOKMARK":
            return False
        if event.type == "DELETED":
            self.objects.pop(metadata["name"], None)
        else:
            self.objects[metadata["name"]] = event.object
        return True


def follow(
    source: Source,
    kind: str,
    namespace: str,
    *,
    labels: str = "",
    fields: str = "",
    patience: Patience | None = None,
) -> Iterator[Objects]:
    """All objects of a selection: now, and after every change. Never ends by itself.

    Raises:
        Dropped: the server was away for too long.
        PlatformError: no right to look, or the cluster does not know this kind.
    """
    patience = patience or Patience()
    follower = _Follower(source, kind, namespace, labels, fields)
    while True:
        patience.ask(follower.step)
        yield dict(follower.objects)


class LogPlace:
    """How far a log was read: times are of one nanosecond, so that lines of one time are counted."""

    def __init__(self) -> None:
        self.since = ""
        self._seen = 0
        self._again = 0

    def reopen(self) -> None:
        """The stream begins again at `since`: lines of that time come once more."""
        self._again = self._seen

    def take(self, line: bytes) -> bytes | None:
        """The line without its time; None where it was read before."""
        at, _, text = line.partition(b" ")
        moment = at.decode(errors="replace")
        if not self.since or _later(moment, self.since):
            self.since, self._seen, self._again = moment, 1, 0
            return text
        if moment == self.since and self._again == 0:
            self._seen += 1
            return text
        if moment == self.since:
            self._again -= 1
        return None


def _later(one: str, other: str) -> bool:
    """RFC 3339 in UTC; containerd leaves zeros at a fraction's end out, so texts do not compare as they are."""
    return _sortable(one) > _sortable(other)


def _sortable(moment: str) -> tuple[str, str]:
    whole, _, fraction = moment.rstrip("Z").partition(".")
    return whole, fraction.ljust(9, "0")


def follow_log(
    source: Source, pod: str, namespace: str, container: str, *, patience: Patience | None = None
) -> Iterator[bytes]:
    """Lines of a container that has started, until it has ended; a broken connection loses and repeats none."""
    patience = patience or Patience()
    place = LogPlace()
    lines: Iterator[bytes] | None = None

    def next_line() -> bytes | None:
        nonlocal lines
        try:
            if lines is None:
                place.reopen()
                lines = source.logs(pod, namespace, container, follow=True, since=place.since)
            line = next(lines, None)
            if line is None:
                lines = None
                if not _runs(source.get("Pod", pod, namespace), container):
                    return None
                raise Dropped(f"the log of pod {pod} broke off")
            return line
        except Dropped:
            lines = None
            raise

    while (line := patience.ask(next_line)) is not None:
        text = place.take(line)
        if text is not None:
            yield text


def _runs(pod: Object | None, container: str) -> bool:
    for status in (pod or {}).get("status", {}).get("containerStatuses", []):
        if status["name"] == container:
            return "running" in status.get("state", {})
    return False

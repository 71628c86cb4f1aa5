"""Stop sequences on streamed text: nothing of a match is ever sent, nothing else is held back for good.

The match that counts is the one that ends first (of several ending at the same character, the longest), so the result
does not depend on how the text was cut into pieces, and streaming and not streaming agree.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feed text in any pieces; take what is safe to send.

    After `stopped` is True the rest of the stream is of no interest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop sequence must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The next piece of text that can be sent now."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        buffer = self._held + text
        start = self._match(buffer)
        if start is not None:
            self.stopped = True
            self._held = ""
            return buffer[:start]
        keep = self._partial(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def finish(self) -> str:
        """What was held back for a match that did not come."""
        held, self._held = self._held, ""
        return held

    def _match(self, buffer: str) -> int | None:
        found = [(start + len(stop), start) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _partial(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that could begin a stop sequence."""
        longest = min(len(buffer), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            tail = buffer[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

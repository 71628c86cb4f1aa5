"""Token ids to text while they arrive.

Tokens cut characters (an emoji is up to four) and the decoders of some tokenizers change a piece by what stands before
it, so text is decoded in a window that always has the previous piece in front, and an unfinished character waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
"""What decoders print for bytes that are not (yet) a character."""

MAX_UNFINISHED_TOKENS = 16
"""A character has at most four bytes, so tokens beyond this are bytes that will never become one."""


class TextStream:
    """Incremental detokenisation of one answer; bytes at its very end that never became a character are dropped.

    Args:
        decode: token ids to text, without special tokens and without clean-up of spaces.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._window = 0
        """The window's first token: that of the piece sent before the last one."""
        self._settled = 0
        """Tokens before this are sent in full; the window repeats the last of them as context."""
        self._sent = 0
        """Characters of the window's text that were sent, the context's included."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens add and that no later token can change."""
        self._ids.extend(token_ids)
        text = self._decode(self._ids[self._window :])
        overdue = len(self._ids) - self._settled > MAX_UNFINISHED_TOKENS
        certain = text if overdue else text.rstrip(UNFINISHED)
        piece = certain[self._sent :]
        self._sent += len(piece)
        if certain == text and (piece or overdue):
            self._window, self._settled = self._settled, len(self._ids)
            self._sent = len(self._decode(self._ids[self._window :]))
        return piece

"""The conversation loop, with both of its sides scripted."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from warpbeam.errors import UserError
from warpbeam.serve.terminal_chat import converse


class Script:
    """The user's lines, and a model that answers with the number of messages it was sent."""

    def __init__(self, *lines: str | BaseException) -> None:
        self.lines = list(lines)
        self.asked: list[list[dict[str, str]]] = []
        self.shown = ""
        self.closed = 0

    def read(self, _: str) -> str:
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    def write(self, text: str) -> None:
        self.shown += text

    def answer(self, messages: Sequence[dict[str, str]]) -> Generator[str, None, None]:
        self.asked.append(list(messages))
        try:
            match messages[-1]["content"]:
                case "refuse":
                    raise UserError("too long")
                case "interrupt":
                    yield "half"
                    raise KeyboardInterrupt
                case _:
                    yield from ("answer ", str(len(messages)))
        finally:
            self.closed += 1

    def play(self, system: str | None = None) -> Script:
        converse(self.answer, system=system, read=self.read, write=self.write)
        return self


def test_a_conversation_remembers() -> None:
    script = Script("hello", "", "more", "/exit").play(system="be brief")
    assert [len(messages) for messages in script.asked] == [2, 4]
    assert script.asked[1][2] == {"role": "assistant", "content": "answer 2"}
    assert script.shown == "answer 2\nanswer 4\n"


def test_reset_keeps_the_system_message() -> None:
    script = Script("hello", "/reset", "again", EOFError()).play(system="be brief")
    assert script.asked[1] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "again"}]


def test_a_refused_message_is_told_and_forgotten() -> None:
    script = Script("refuse", "hello", KeyboardInterrupt()).play()
    assert "too long" in script.shown
    assert script.asked[1] == [{"role": "user", "content": "hello"}]


def test_an_interrupted_answer_is_closed_and_kept() -> None:
    script = Script("interrupt", "go on", "/exit").play()
    assert "half [stopped]" in script.shown
    assert script.asked[1][1] == {"role": "assistant", "content": "half"}
    assert script.closed == 2

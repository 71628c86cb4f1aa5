"""The quickstart's data set: real, whole, and the same on every machine."""

from __future__ import annotations

from jobs.pydocs import documented, first_paragraph, question, records

SOURCE = '''
"""A module about looms."""

class Loom:
    """Weaves."""

    def weave(self, threads, *, tension=1.0):
        """Weave the threads.

        The details do not belong to the answer.
        """

    def _hidden(self):
        """Not shown."""
'''


def test_public_names_become_questions_with_their_signature() -> None:
    items = list(documented("mill", SOURCE))
    assert [item.name for item in items] == ["mill", "mill.Loom", "mill.Loom.weave"]
    assert question(items[2]) == "What does the Python function `mill.Loom.weave(self, threads, *, tension=1.0)` do?"
    assert first_paragraph(items[2].doc) == "Weave the threads."


def test_thousands_of_examples_and_no_name_on_both_sides() -> None:
    made = list(records())
    held_out = {record["messages"][0]["content"] for out, record in made if out}
    train = {record["messages"][0]["content"] for out, record in made if not out}
    assert len(train) > 2000
    assert len(held_out) > 100
    assert not train & held_out

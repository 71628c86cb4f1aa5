from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.launch.jobs import job
from warpbeam.errors import UserError
from warpbeam.launch.own_code import check_own_code, hooks

GOOD = """
print("noise at import")
def render(record, tokenizer): ...
def loss(outputs, batch): ...
def few(record): ...
class Log:
    def __init__(self, extra): ...
    def on_end(self, ctx, state): ...
NOT_CALLABLE = 3
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "my_hooks.py").write_text(GOOD)
    (tmp_path / "broken.py").write_text("x = 1\nx.missing\n")
    (tmp_path / "needs.py").write_text("import not_there.inside\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    (tmp_path / "leaves.py").write_text("import os\nos._exit(7)\n")
    return tmp_path


def test_good_hooks_pass(root: Path) -> None:
    check_own_code(job(code={"render": "my_hooks:render", "loss": "my_hooks:loss"}), root)


def test_a_job_without_own_code_starts_no_process(tmp_path: Path) -> None:
    assert hooks(job()) == []
    check_own_code(job(), tmp_path)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.mod:f", ["cannot be imported", "No module named 'nowhere'"]),
        ("needs:f", ["needs.py:1: ModuleNotFoundError", "install 'not_there' in this environment"]),
        ("my_hooks:rendre", ["does not exist", "few, loss, render"]),
        ("my_hooks:NOT_CALLABLE", ["cannot be called", "int"]),
        ("my_hooks:few", ["does not take its arguments", "(record)"]),
        ("broken:f", ["cannot be imported", "broken.py:2: AttributeError"]),
        ("wrong:f", ["cannot be imported", "wrong.py:1: SyntaxError"]),
        ("leaves:f", ["ended the process (exit code 7)"]),
    ],
)
def test_what_is_wrong_is_said(root: Path, target: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        check_own_code(job(code={"render": target}), root)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert caught.value.exit_code == 2


def test_a_callback_that_would_never_be_called_is_refused(root: Path) -> None:
    (root / "watch.py").write_text(
        "class Typo:\n    def on_stepp(self, ctx, row): ...\n"
        "class Good:\n    def on_end(self, ctx, state): ...\n"
        "class Inherits(Good): ...\n"
        "def make(): return Good()\n"
    )
    check_own_code(job(code={"callbacks": ["watch:Good", "watch:Inherits", "watch:make"]}), root)
    with pytest.raises(UserError, match="none of a callback's methods") as caught:
        check_own_code(job(code={"callbacks": ["watch:Typo"]}), root)
    assert "it has on_stepp; a callback has any of on_start, on_step" in caught.value.why


def test_what_a_callback_requires_is_there(root: Path) -> None:
    (root / "half.py").write_text("import not_there.inside\n")
    (root / "track.py").write_text(
        "class Base:\n    def on_end(self, ctx, state): ...\n"
        "class Good(Base):\n    requires = ('json',)\n"
        "class Lacks(Base):\n    requires = ('json', 'not_there')\n"
        "class Broken(Base):\n    requires = ('half',)\n"
    )
    check_own_code(job(code={"callbacks": ["track:Good"]}), root)
    with pytest.raises(UserError, match="needs not_there, which is not installed") as caught:
        check_own_code(job(code={"callbacks": ["track:Lacks"]}), root)
    assert (caught.value.fix, caught.value.exit_code) == ("install 'not_there' in this environment", 2)
    with pytest.raises(UserError, match="needs half, which is installed and does not import") as caught:
        check_own_code(job(code={"callbacks": ["track:Broken"]}), root)
    assert "No module named 'not_there'" in caught.value.why


def test_a_callback_is_made_without_arguments(root: Path) -> None:
    with pytest.raises(UserError, match=r"code\.callbacks: 'my_hooks:Log' does not take"):
        check_own_code(job(code={"callbacks": ["my_hooks:Log"]}), root)

"""A real instruction data set that is on every machine with Python: the documentation of the standard library.

    python -m jobs.pydocs OUT_DIR        # OUT_DIR/train/part-*.jsonl and OUT_DIR/eval/part-0.jsonl, OpenAI `messages`

Every documented function, class and module becomes a question and the first paragraph of its docstring the answer. The
sources are parsed, never imported. The split is by a hash of the documented name, so that it is the same on every
machine and a name never stands on both sides.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TRAIN_FILES = 4
HELD_OUT_OF_256 = 13  # about 5%
MIN_ANSWER_CHARS, MAX_ANSWER_CHARS = 20, 320
MAX_QUESTION_CHARS = 240
PASSED_OVER = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "ensurepip", "__pycache__"}


class Documented(NamedTuple):
    """One documented thing: its dotted name, its signature (None for classes and modules) and its docstring."""

    name: str
    kind: str
    signature: str | None
    doc: str


def stdlib_files() -> Iterator[tuple[str, Path]]:
    """Dotted module name and path of every module of the standard library written in Python, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if PASSED_OVER.isdisjoint(parts) and parts[0] in sys.stdlib_module_names:
            yield ".".join(part for part in parts if part != "__init__"), path


def documented(module: str, source: str) -> Iterator[Documented]:
    """The documented names of one module, private ones left out."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the standard library ships a few files that are broken on purpose
        return
    yield from _visit(tree, module)


def _visit(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Documented]:
    doc = ast.get_docstring(node)
    if doc:
        if isinstance(node, ast.Module):
            yield Documented(name, "module", None, doc)
        elif isinstance(node, ast.ClassDef):
            yield Documented(name, "class", None, doc)
        else:
            yield Documented(name, "function", f"({ast.unparse(node.args)})", doc)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield from _visit(child, f"{name}.{child.name}")


def first_paragraph(doc: str) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())


def question(item: Documented) -> str:
    """What a person would ask about it."""
    if item.kind == "module":
        return f"What is the Python module `{item.name}` for?"
    if item.kind == "class":
        return f"What is the Python class `{item.name}`?"
    return f"What does the Python function `{item.name}{item.signature}` do?"


def records() -> Iterator[tuple[bool, dict[str, object]]]:
    """(held out?, record) for every documented name, each name once."""
    seen: set[str] = set()
    for module, path in stdlib_files():
        for item in documented(module, path.read_text(encoding="utf-8", errors="replace")):
            answer, asked = first_paragraph(item.doc), question(item)
            fits = MIN_ANSWER_CHARS <= len(answer) <= MAX_ANSWER_CHARS and len(asked) <= MAX_QUESTION_CHARS
            if item.name in seen or not fits:
                continue
            seen.add(item.name)
            held_out = hashlib.sha256(item.name.encode()).digest()[0] < HELD_OUT_OF_256
            yield held_out, {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


def write(out: Path) -> tuple[int, int]:
    """Write the data set below `out`; returns (training records, held-out records)."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    for held_out, record in records():
        lines[held_out].append(json.dumps(record, ensure_ascii=False))
    for part in range(TRAIN_FILES):
        _write_lines(out / "train" / f"part-{part}.jsonl", lines[False][part::TRAIN_FILES])
    _write_lines(out / "eval" / "part-0.jsonl", lines[True])
    return len(lines[False]), len(lines[True])


def _write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m jobs.pydocs OUT_DIR")
    train, held_out = write(Path(sys.argv[1]))
    print(f"{train} training and {held_out} held-out records in {sys.argv[1]}")

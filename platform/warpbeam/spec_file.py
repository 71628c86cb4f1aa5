"""Read a job or pool file so strictly that a mistake is found before anything is spent.

YAML 1.2 without surprises: `no` is text, `1e-5` a number; a duplicate key, an anchor or a tag is an error; and every
key keeps its line, so that all mistakes of one file are told at once, each by file, line and key.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from warpbeam.errors import UserError, WarpbeamError
from warpbeam.secret_shapes import secret_shape
from warpbeam.spec_problems import KeyPath, Problem, show, translate

MAX_BYTES: Final = 1 << 20
MAX_DIGITS: Final = 40

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Spec:
    """A file's content as plain Python, and what the reading itself found wrong.

    Attributes:
        lines: the line of every key, from 1.
        unread: keys whose value could not be read and is None in `data`.
    """

    name: str
    data: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    unread: frozenset[KeyPath] = frozenset()

    def line_of(self, key: KeyPath) -> int | None:
        """The line of `key`, or of what holds it where it is missing."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key)


def load_spec(
    path: Path,
    model: type[M],
    *,
    kind: str,
    hints: Mapping[str, str] | None = None,
    error: type[WarpbeamError] = UserError,
) -> M:
    """The file at `path` as a `model`.

    Args:
        kind: what the file is, for messages: `job file`.
        hints: unknown key -> what to write instead, for keys of other tools and keys that are planned.
        error: raised when the file is wrong; its owner is who can mend it.
    """
    return build(
        parse(read_text(path, kind=kind), name=str(path), kind=kind, error=error),
        model,
        kind=kind,
        hints=hints,
        error=error,
    )


def build(
    spec: Spec,
    model: type[M],
    *,
    kind: str,
    hints: Mapping[str, str] | None = None,
    error: type[WarpbeamError] = UserError,
) -> M:
    """Check `spec` against `model`; one error lists every problem."""
    secrets = find_secrets(spec.data)
    problems = [*spec.problems, *secrets]
    told = spec.unread | {p.key for p in secrets}  # one word on a value is enough, and the only one on a secret
    built: M | None = None
    try:
        built = model.model_validate(spec.data)
    except ValidationError as mistakes:
        problems += [p for p in translate(mistakes, model, hints or {}) if p.key not in told]
    if problems or built is None:
        raise error_for(spec, problems, kind=kind, error=error)
    return built


def digest(model: BaseModel) -> str:
    """sha256 of the content: comments, order and defaults written out do not change it."""
    content = json.dumps(
        model.model_dump(mode="json", by_alias=True), sort_keys=True, ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(content.encode()).hexdigest()


def error_for(spec: Spec, problems: list[Problem], *, kind: str, error: type[WarpbeamError]) -> WarpbeamError:
    """One error for all `problems`, in the file's order."""
    placed = [replace(p, line=p.line or spec.line_of(p.key)) for p in problems]
    placed.sort(key=lambda p: (p.line or 0, p.key == ()))
    reason = f"bad_{kind.replace(' ', '_')}"
    if len(placed) == 1:
        only = placed[0]
        what = f"{_place(spec, only)}: {replace(only, write='')}"
        return error(
            what, fix=only.write or f"correct the {kind}; its keys are described in docs/schema/", reason=reason
        )
    listed = "\n".join(f"  {_place(spec, p)}: {p}" for p in placed)
    return error(
        f"{spec.name} has {len(placed)} problems:\n{listed}",
        fix="correct these lines, then the same command again",
        reason=reason,
    )


def _place(spec: Spec, problem: Problem) -> str:
    return f"{spec.name}:{problem.line}" if problem.line else spec.name


def find_secrets(data: object, key: KeyPath = ()) -> list[Problem]:
    """Values anywhere that have the shape of a known token. The values themselves are never in the result."""
    if isinstance(data, Mapping):
        found = [p for name, value in data.items() for p in find_secrets(value, (*key, name))]
        return found + [p for name in data for p in _secret_problem(str(name), (*key, str(name)))]
    if isinstance(data, (list, tuple)):
        return [p for i, value in enumerate(data) for p in find_secrets(value, (*key, i))]
    return _secret_problem(data, key) if isinstance(data, str) else []


def _secret_problem(text: str, key: KeyPath) -> list[Problem]:
    if shape := secret_shape(text):
        return [Problem(key, f"holds {shape} (not shown)", SECRETS_ADVICE)]
    return []


SECRETS_ADVICE: Final = (
    "remove it (and revoke it if this file was shared); name it under `secrets: [{env: NAME, from: name-in-the-pool}]`"
)


@contextmanager
def placing(path: Path) -> Iterator[None]:
    """Give file and line to errors that begin with a key of the file (`train.lr ...`), as its own checks do."""
    try:
        yield
    except UserError as error:
        line = _line_named(path, error.what)
        if line is None:
            raise
        what = f"{path}:{line}: {error.what}"
        raise UserError(what, why=error.why, fix=error.fix, reason=error.reason) from error


def _line_named(path: Path, text: str) -> int | None:
    """The line of the key that `text` begins with; None where the file (or a default) has it not."""
    named = re.match(r"\w+(?=:)|\w+(\.\w+|\[\d+\])+", text)
    if named is None:
        return None
    parts = re.findall(r"\w+", named[0])
    key: KeyPath = tuple(int(part) if part.isdigit() else part for part in parts)
    try:
        spec = parse(read_text(path, kind="file"), name=str(path))
    except UserError:  # gone meanwhile
        return None
    return spec.line_of(key) if key[:1] in spec.lines else None


# ---- text -> Spec


def read_text(path: Path, *, kind: str) -> str:
    """The file's text; a path that leads to none is the caller's mistake whoever owns the file."""
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"there is no {kind} at {path}", fix=_similar(path), reason="missing_file") from None
    except IsADirectoryError:
        fix = f"name the file in it{_choices(path)}"
        raise UserError(f"{path} is a folder, not a {kind}", fix=fix, reason="not_a_file") from None
    except OSError as cause:
        what = f"cannot read {path}: {cause.strerror}"
        raise UserError(what, fix="check its permissions", reason="unreadable_file") from cause
    if len(raw) > MAX_BYTES:
        raise UserError(
            f"{path} has {len(raw):,} bytes: that is no {kind}",
            fix=f"give the {kind} (YAML, less than 1 MiB)",
            reason="too_big",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = raw[: cause.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8 text", fix="save the file as UTF-8", reason="not_utf8") from None


def _similar(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {path.parent / near[0]}?"
    return "give the path of a file that exists" + (f"; there are {', '.join(sorted(names)[:5])}" if names else "")


def _choices(folder: Path) -> str:
    names = sorted(p.name for p in folder.glob("*.y*ml"))[:5]
    return f": {', '.join(names)}" if names else ""


def parse(text: str, *, name: str, kind: str = "file", error: type[WarpbeamError] = UserError) -> Spec:
    """YAML text as a `Spec`; raises where there is no mapping to check."""
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as cause:
        raise _syntax_error(cause, text, name, error) from None
    except RecursionError:
        fix = "write fewer brackets inside each other"
        raise error(f"{name} is nested too deeply", fix=fix, reason="bad_yaml") from None
    except YAMLError as cause:  # a character YAML does not allow: its message holds no excerpt
        line = _line_of_control_character(text)
        where = f"{name}:{line}" if line else name
        raise error(f"{where}: a character that YAML does not allow", fix="remove it", reason="bad_yaml") from cause
    if root is None:
        raise error(f"{name} is empty", fix=f"write a {kind}: `warpbeam init` makes one", reason="empty_file")
    if not isinstance(root, MappingNode):
        raise error(
            f"{name} is not a mapping",
            why=f"a {kind} is made of `key: value` lines",
            fix="start with `schema: ...`",
            reason="not_a_mapping",
        )
    reader = _Reader()
    data = reader.read(root, ())
    return Spec(name, data, reader.lines, tuple(reader.problems), frozenset(reader.unread))


def _line_of_control_character(text: str) -> int | None:
    found = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    return text[: found.start()].count("\n") + 1 if found else None


def _syntax_error(cause: MarkedYAMLError, text: str, name: str, error: type[WarpbeamError]) -> WarpbeamError:
    mark = cause.problem_mark or cause.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    problem = str(cause.problem or cause.context or "broken YAML")
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return error(f"{where}: a tab where YAML wants spaces", fix="indent with spaces only", reason="bad_yaml")
    for part, (wrong, fix) in _SYNTAX.items():
        if part in problem:
            return error(f"{where}: {wrong}", fix=fix, reason="bad_yaml")
    return error(
        f"{where}: broken YAML: {problem}",
        fix="check quotes, brackets and indentation on this line and the one before",
        reason="bad_yaml",
    )


_SYNTAX: Final[dict[str, tuple[str, str]]] = {
    "mapping values are not allowed here": (
        "a `:` where no key can be",
        "align this key with the keys beside it, or put a text that holds `: ` in quotes",
    ),
    "but found another document": ("a second document (`---`)", "keep one document in a file"),
    "cannot start any token": ("a value cannot begin with this character", "put the text in quotes"),
    "but got '<stream end>'": ("a bracket is not closed", "close every [ and {"),
    "end of stream": ("a quote is not closed", "close the quote"),
    "could not find expected ':'": ("a line that is neither `key: value` nor `- item`", "write `key: value`"),
    "expected <block end>": (
        "this does not fit the lines before it",
        "align the keys of one mapping in one column, and close every quote and bracket above",
    ),
}

_CORE: Final = "tag:yaml.org,2002:"


class _Reader:
    """Walks the node tree once: plain values out, lines and problems beside them."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.unread: set[KeyPath] = set()

    def read(self, node: Node, key: KeyPath) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        if node.anchor:
            return self._unread(
                key, line, "anchors (&) and aliases (*) are not read", "write the value out in both places"
            )
        if isinstance(node, MappingNode):
            return self._mapping(node, key)
        if isinstance(node, SequenceNode):
            return [self.read(child, (*key, i)) for i, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, key, line)

    def _mapping(self, node: MappingNode, key: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if name_node.tag == _CORE + "merge":
                self._wrong(key, line, "`<<` is not read", "write the keys out")
                continue
            if name_node.tag != _CORE + "str":
                self._wrong(key, line, "a key must be text", 'put the key in quotes, for example "1": x')
                continue
            name = name_node.value
            at = (*key, name)
            if name in values:
                self._wrong(at, line, f"is written twice, first on line {self.lines[at]}", "keep one of the two")
                continue
            self.lines[at] = line
            values[name] = self.read(value_node, at)
        return values

    def _scalar(self, node: ScalarNode, key: KeyPath, line: int) -> Any:
        tag, text = str(node.tag), node.value
        if not tag.startswith(_CORE):
            return self._unread(key, line, f"the tag {tag} is not read", "write the plain value")
        build = _SCALARS.get(tag.removeprefix(_CORE), str)
        try:
            value = build(text)
        except ValueError:
            return self._unread(key, line, f"cannot be read, it is {show(text)}", "put it in quotes if it is text")
        if isinstance(value, float) and not math.isfinite(value):
            return self._unread(key, line, f"must be a finite number, it is {show(text)}", "write a number")
        return value

    def _unread(self, key: KeyPath, line: int, wrong: str, write: str) -> None:
        self.unread.add(key)
        self._wrong(key, line, wrong, write)

    def _wrong(self, key: KeyPath, line: int, wrong: str, write: str) -> None:
        self.problems.append(Problem(key, wrong, write, line))


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if len(digits) > MAX_DIGITS:
        raise ValueError("too long")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
    return sign * int(digits if base == 10 else digits[2:], base)


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _truth(text: str) -> bool | str:
    """A `%YAML 1.1` directive makes `yes` a truth value; here it stays text."""
    return {"true": True, "false": False}.get(text.lower(), text)


_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "int": _integer,
    "float": _float,
    "bool": _truth,
    "null": lambda _: None,
}

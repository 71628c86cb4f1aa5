"""Say what is wrong in a job or pool file in the words of the person who wrote it.

pydantic finds most mistakes; its messages are for programmers. Here each becomes a `Problem`: the key, what is wrong
and what to write. Our own checks raise the same from a validator by `refuse`, several at once where there are several.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from warpbeam.secret_shapes import names_a_secret, redact, secret_shape

KeyPath = tuple[str | int, ...]

UNION_TAG: Final = "#"  # discriminator tags begin with it, so that they can be told from keys in pydantic's locations
_OURS: Final = "warpbeam_problems"


@dataclass(frozen=True)
class Problem:
    """One mistake: where (`key`), what is `wrong` and what to `write` instead."""

    key: KeyPath
    wrong: str
    write: str = ""
    line: int | None = None

    def __str__(self) -> str:
        head = f"{dotted(self.key)}: {self.wrong}" if self.key else self.wrong
        return f"{head}; {self.write}" if self.write else head


def refuse(*problems: Problem) -> NoReturn:
    """Raise from a pydantic validator; keys are relative to the model (or field) under validation."""
    raise PydanticCustomError(_OURS, "{text}", {"text": "; ".join(map(str, problems)), "problems": problems})  # type: ignore[arg-type]


def dotted(key: KeyPath) -> str:
    """`("data", "train", 0, "path")` -> `data.train[0].path`, never printing a secret."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{redact(part)}" if text else redact(part)
    return text


def show(value: object) -> str:
    """A value as an error may print it: short, one line, no secret, no Python words."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping (key: value)"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, str):
        if secret_shape(value):
            return "a text that looks like a secret (not shown)"
        shortened = value if len(value) <= 60 else value[:57] + "..."
        return f"the text {json.dumps(shortened, ensure_ascii=False)}"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    return f"the number {value}" if isinstance(value, (int, float)) else f"{value}"


def nearest(word: str, choices: list[str]) -> str | None:
    """The choice a person most likely meant, or None."""
    found = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return found[0] if found else None


def translate(error: ValidationError, model: type[BaseModel], hints: Mapping[str, str]) -> list[Problem]:
    """Every mistake pydantic found in one `model`, in the order it found them.

    Args:
        hints: foreign or planned key -> what to write here; looked up where an unknown key has no near neighbour.
    """
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        key = tuple(part for part in details["loc"] if part != "[key]" and not str(part).startswith(UNION_TAG))
        if details["type"] == _OURS:
            problems += [replace(p, key=key + p.key) for p in details["ctx"]["problems"]]
        elif details["type"] == "extra_forbidden":
            problems.append(_unknown_key(key, model, hints))
        else:
            problems.append(_wrong_value(key, details, model))
    return problems


def _unknown_key(key: KeyPath, model: type[BaseModel], hints: Mapping[str, str]) -> Problem:
    word = str(key[-1])
    parent = model_at(model, key[:-1])
    siblings = keys_of(parent) if parent else []
    if word in hints:
        return Problem(key, "unknown key", hints[word])
    if near := nearest(word, siblings):
        return Problem(key, "unknown key", f"did you mean `{near}`?")
    elsewhere = [path for path in leaf_keys(model) if path.split(".")[-1] == word]
    if elsewhere:
        return Problem(key, "unknown key here", f"did you mean `{elsewhere[0]}`?")
    return Problem(key, "unknown key", f"the keys here are {', '.join(siblings)}")


_EXPECTED: Final[dict[str, str]] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "finite_number": "a finite number",
}


def _wrong_value(key: KeyPath, details: ErrorDetails, model: type[BaseModel]) -> Problem:
    kind, ctx, got = details["type"], details.get("ctx", {}), details["input"]
    write = _example(key, model)
    if kind in _EXPECTED and key and names_a_secret(str(key[-1])):
        return Problem(key, f"must be {_EXPECTED[kind]} (the value is not shown)")
    if kind == "missing":
        return Problem(key, "is missing", write)
    if kind in _EXPECTED:
        if isinstance(got, str) and kind in ("int_type", "float_type", "bool_type") and _reads_as_value(got):
            write = f"write {got} without quotes"
        if isinstance(got, (int, float)) and kind == "string_type":
            write = f'put it in quotes: "{str(got).lower() if isinstance(got, bool) else got}"'
        return Problem(key, f"must be {_EXPECTED[kind]}, it is {show(got)}", write)
    if kind == "literal_error":
        choices = [text.strip("'") for text in ctx["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(got, choices) if isinstance(got, str) else None
        advice = f"did you mean `{near}`?" if near else f"write {' or '.join(choices)}"
        return Problem(key, f"must be {' | '.join(choices)}, it is {show(got)}", advice)
    return Problem(key, f"{_limit(kind, ctx)}, it is {show(got)}", write)


def _limit(kind: str, ctx: Mapping[str, Any]) -> str:
    match kind:
        case "greater_than":
            return f"must be more than {ctx['gt']:g}"
        case "greater_than_equal":
            return f"must be {ctx['ge']:g} or more"
        case "less_than":
            return f"must be less than {ctx['lt']:g}"
        case "less_than_equal":
            return f"must be {ctx['le']:g} or less"
        case "too_short" | "string_too_short":
            return "must not be empty"
        case "too_long":
            return f"has more than {ctx['max_length']} entries"
    return f"is not valid ({kind.replace('_', ' ')})"


def _reads_as_value(text: str) -> bool:
    if text in ("true", "false"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _example(key: KeyPath, model: type[BaseModel]) -> str:
    """What to write, from the field's own `examples`, else its default; or that it may be left out."""
    while key and isinstance(key[-1], int):  # an element is shown by its whole list
        key = key[:-1]
    if not key:
        return ""
    parent = model_at(model, key[:-1])
    field = _field(parent, str(key[-1])) if parent else None
    if field is None or not (field.examples or _may_be_shown(field.default)):
        return f"leave `{key[-1]}` out" if field is not None and not field.is_required() else ""
    example = field.examples[0] if field.examples else field.default
    text = example if isinstance(example, str) else json.dumps(example)
    return f"write for example `{key[-1]}: {text}`"


def _may_be_shown(default: object) -> bool:
    return isinstance(default, str | int | float)


# ---- walking the models


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    return dict(_fields(model)).get(key)


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys a file may write in this mapping."""
    return [key for key, _ in _fields(model)]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation may hold: of itself, an option of a union, an element of a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated, list, tuple, dict):
        return [found for arg in get_args(annotation) for found in _models_in(arg)]
    return []


def _is_mapping_of_models(annotation: Any) -> bool:
    return get_origin(annotation) is dict and bool(_models_in(annotation))


def model_at(model: type[BaseModel], key: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at `key`, or None where there is none."""
    names = iter(part for part in key if isinstance(part, str))  # an element has the model of its list
    for name in names:
        field = _field(model, name)
        inner = _models_in(field.annotation) if field else []
        if field is None or not inner:
            return None
        model = inner[0]
        if _is_mapping_of_models(field.annotation):
            next(names, None)  # a name of the user's own choice, such as a secret's
    return model


def leaf_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key that holds a value, dotted: `train.lr`. List elements are not numbered; a key that takes a value or a
    mapping is a leaf itself."""
    leaves: list[str] = []
    for key, field in _fields(model):
        options = [arg for arg in get_args(field.annotation) if arg is not types.NoneType] or [field.annotation]
        inner = [found for option in options for found in _models_in(option)]
        if inner and all(_models_in(option) for option in options):
            leaves += leaf_keys(inner[0], f"{prefix}{key}.")
        else:
            leaves.append(prefix + key)
    return leaves

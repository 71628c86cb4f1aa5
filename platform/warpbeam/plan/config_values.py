"""A config.json's values by our names: the family's default where it says nothing, refused where they cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from warpbeam.errors import UserError
from warpbeam.plan.families import Family

# Far beyond any model there is; without an end, a loop over the layers of a mistyped config would not come to one.
MOST_LAYERS: Final = 10_000
MOST_OF_ANYTHING: Final = 1 << 24
USUAL: Final = {"max_position_embeddings": 4096}  # of what no family has a default for


class ImpossibleSize(UserError):
    """Refused with a value that is usual, whether or not it goes with the others: who knows them offers a better one.

    `name` is ours, `usual` the value; None where it is no number.
    """

    name: str = ""
    usual: int | None = None


class ConfigValues:
    """Reads a config's values by our names, with the family's defaults."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self.config, self.family = config, family

    def key(self, name: str) -> str:
        """The key that this config has for it; the family's own where it has none."""
        own = (self.family.names or {}).get(name, name)
        if own in self.config:
            return own
        also = (key for key, ours in (self.family.aliases or {}).items() if ours == name and key in self.config)
        return next(also, own)

    def value(self, name: str) -> Any:
        return self.config.get(self.key(name), self.family.defaults.get(name))

    def impossible(self, name: str, value: object, wanted: str, write: object) -> ImpossibleSize:
        key = self.key(name)
        error = ImpossibleSize(
            f"model.config.{key} must be {wanted}, it is {value!r}",
            fix=f"write for example `{key}: {write}`",
            reason="bad_model_shape",
        )
        error.name, error.usual = name, write if is_whole(write) else None
        return error

    def known(self, names: Iterable[str]) -> dict[str, int]:
        """Those of these sizes that are possible by themselves, stated or the family's."""
        values = {name: self.value(name) for name in names}
        return {name: value for name, value in values.items() if is_whole(value) and 1 <= value <= MOST_OF_ANYTHING}

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number, 1 or more, with an end that no model reaches."""
        value = self.value(name)
        value = default if value is None else value
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST_OF_ANYTHING
        usual = _meant(value) or self.family.defaults.get(name) or default or USUAL.get(name, 1)
        if value is None or not is_whole(value) or value < 1:
            raise self.impossible(name, value, "a whole number, 1 or more", usual)
        if value > most:
            raise self.impossible(name, value, f"at most {most:,}", usual)
        return int(value)

    def count(self, name: str) -> int | None:
        """A whole number, 0 or more; None where the config does not say."""
        value: int | None = self.value(name)
        if value is not None and (not is_whole(value) or not 0 <= value <= MOST_LAYERS):
            raise self.impossible(name, value, f"a whole number from 0 to {MOST_LAYERS:,}", 1)
        return value

    def numbers(self, name: str) -> set[int]:
        """A list of layers' numbers; empty where the config does not say."""
        value = self.value(name)
        if value is None:
            return set()
        if not isinstance(value, list) or not all(map(is_whole, value)):
            raise self.impossible(name, value, "a list of layers' numbers", "[]")
        return set(value)

    def flag(self, name: str) -> bool:
        """true or false; "false" in quotes would count as true, so it is refused."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool) and value not in (0, 1):
            raise self.impossible(name, value, "true or false", "false")
        return bool(value)

    def bias(self, fixed: bool | None, key: str) -> bool:
        return self.flag(key) if fixed is None else fixed


def _meant(value: object) -> int | None:
    """256 of "256" and 256.0."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    whole = not isinstance(value, bool) and number.is_integer() and 1 <= number <= MOST_OF_ANYTHING
    return int(number) if whole else None


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

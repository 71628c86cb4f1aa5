"""Versions of what we store. A reader takes its own version and the one before, and refuses a newer one in words.

Every object in a store carries `schema` ("warpbeam/<what>/v<n>") and `writer` (the version of warpbeam that wrote it),
because stores outlive installations.
"""

from __future__ import annotations

from importlib.metadata import version

from warpbeam.errors import PlatformError, WarpbeamError

WRITER = f"warpbeam {version('warpbeam')}"


class SchemaTooNew(PlatformError):
    """The object was written by a newer warpbeam than the one that reads it."""

    default_reason = "schema_too_new"


def check_schema(found: object, expected: str, where: str) -> None:
    """Raise unless `found` is `expected` ("warpbeam/log/v1") or the version before it."""
    family, _, newest = expected.rpartition("/v")
    name, _, version = str(found).rpartition("/v")
    if name != family or not version.isdigit():
        raise WarpbeamError(f"{where} is not a {family} object (schema: {found!r})", reason="schema_unknown")
    if int(version) > int(newest):
        raise SchemaTooNew(
            f"{where} has schema {found}, newer than this warpbeam understands ({expected})",
            why="another machine wrote it with a newer release",
            fix="install the release that wrote it: `pip install --upgrade warpbeam`",
        )
    if int(version) < int(newest) - 1:
        raise WarpbeamError(f"{where} has schema {found}, too old for this warpbeam", reason="schema_too_old")

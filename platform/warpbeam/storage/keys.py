"""Which strings may be keys: what every kind of store can hold and nothing that could leave the prefix.

A key becomes a file name in a local store and a part of a URL in S3, and parts of it come from job files. It is
checked here, once, on the way into every store.
"""

from __future__ import annotations

from warpbeam.errors import UserError

MAX_KEY_BYTES = 1024
"""S3's limit for a whole key."""
MAX_SEGMENT_BYTES = 255
"""A file system's limit for one name; the embedded server has the same."""


def check_key(key: str) -> str:
    """The key itself when it may be used.

    Raises:
        UserError: absolute, empty, too long, or with an empty, `.` or `..` segment or a control character.
    """
    problem = _problem(key)
    if problem:
        raise _bad(key, problem)
    return key


def check_prefix(prefix: str) -> str:
    """A prefix to list by: empty, or the beginning of a valid key (a slash at the end is fine)."""
    if not prefix:
        return prefix
    problem = _problem(prefix.removesuffix("/"))
    if problem:
        raise _bad(prefix, problem)
    return prefix


def join_key(*parts: str) -> str:
    """Join non-empty parts with slashes: `join_key("", "a/", "b") == "a/b"`."""
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


def _problem(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/"):
        return "it is absolute"
    if any(ord(char) < 32 or ord(char) == 127 for char in key):
        return "it has a control character"
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_KEY_BYTES:
        return f"it is longer than {MAX_KEY_BYTES} bytes"
    for segment in key.split("/"):
        if segment == "":
            return "it has an empty segment (`//`, or a slash at the end)"
        if segment in (".", ".."):
            return f"it has a `{segment}` segment"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"one of its segments is longer than {MAX_SEGMENT_BYTES} bytes"
    return ""


def _bad(key: str, problem: str) -> UserError:
    shown = key if len(key) <= 120 else f"{key[:117]}..."
    return UserError(
        f"{shown!r} cannot be a key in a store",
        why=problem,
        fix="use a relative path such as teams/a/data/part-0.bin",
        reason="bad_key",
    )

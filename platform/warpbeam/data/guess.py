"""What format somebody's records could be meant to have when their fields have other names.

Only proposals for `warpbeam init`: a job file says `format:` and `fields:`, or has records with the usual names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpbeam.data.formats import detect_format, matching_formats

TEXT_NAMES = ("content", "document", "body", "article", "code")
PROMPT_NAMES = ("question", "query", "instruction", "input", "source", "prompt", "user")
COMPLETION_NAMES = ("answer", "response", "output", "target", "reply", "completion", "assistant")


def guess_format(values: Sequence[dict[str, Any] | str]) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """`(format, other formats it could be, fields to rename)`.

    Raises:
        UserError: nothing fits.
    """
    found = matching_formats(values, {}).formats
    if found:
        return found[0], found[1:], {}
    first: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            first = {**{key: item for key, item in value.items() if item is not None}, **first}
    for name, value in first.items():
        keys = set(value[0]) if isinstance(value, list) and value and isinstance(value[0], dict) else set()
        if keys >= {"role", "content"}:
            return "messages", (), {"messages": name}
        if keys >= {"from", "value"}:
            return "sharegpt", (), {"conversations": name}
    texts = {name.lower(): name for name, value in first.items() if isinstance(value, str)}
    prompt = next((texts[name] for name in PROMPT_NAMES if name in texts), None)
    completion = next((texts[name] for name in COMPLETION_NAMES if name in texts and texts[name] != prompt), None)
    if prompt and completion:
        return "prompt-completion", (), {"prompt": prompt, "completion": completion}
    text = next((texts[name] for name in TEXT_NAMES if name in texts), None)
    if text:
        return "text", (), {"text": text}
    return detect_format(values), (), {}  # says what is known

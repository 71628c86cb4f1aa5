"""Recognise a secret that was written where it will be stored.

Job and pool files travel: into bundles, records and job metadata. A token in one of them is a leak, so the readers of
both refuse it by its shape, and everything that prints a value asks here first. Only shapes that nothing else has are
listed: a false alarm that cannot be silenced would be worse than a miss.
"""

from __future__ import annotations

import re
from typing import Final

SECRET_SHAPES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("an AWS access key id", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        ("a Hugging Face token", r"(?<![A-Za-z0-9_])(?:hf|api_org)_[A-Za-z0-9]{16,}"),
        ("a GitHub token", r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,})"),
        ("a GitLab token", r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{16,}"),
        ("an API key (sk-...)", r"(?<![A-Za-z0-9])sk-(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{20,}"),
        ("a Slack token", r"(?<![A-Za-z0-9])xox[abeprs]-[A-Za-z0-9-]{10,}"),
        ("a Google API key", r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}"),
        ("an npm token", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}"),
        ("a PyPI token", r"(?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{30,}"),
        ("a JSON web token", r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
        ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
        ("a password inside an address", r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"),
    )
)

SECRET_KEY_ENDINGS: Final = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def secret_shape(text: str) -> str | None:
    """What kind of secret `text` holds, in words for an error, or None."""
    for label, pattern in SECRET_SHAPES:
        if pattern.search(text):
            return label
    return None


def names_a_secret(key: str) -> bool:
    """Whether an environment variable of this name holds a secret by convention."""
    return key.upper().endswith(SECRET_KEY_ENDINGS)


def redact(text: str) -> str:
    """`text` with everything of a known secret's shape replaced; for logs and error messages."""
    for label, pattern in SECRET_SHAPES:
        text = pattern.sub(f"<{label}>", text)
    return text

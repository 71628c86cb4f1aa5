"""The user's own functions, by the names that the job file gives them."""

from __future__ import annotations

import importlib
from typing import Any

from warpbeam.errors import UserError


def load(target: str, key: str) -> Any:
    """`package.module:name` as an object. `key` is the job's key, for the message.

    Raises:
        UserError: it cannot be found. The plan has checked this before; a worker may lack the module.
    """
    module_name, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{key}: {target!r} cannot be imported in this process",
            why=f"{type(error).__name__}: {error}",
            fix="the module must be in the job file's folder or in the folder of the command",
            reason="own_code_import",
        ) from error
    return found

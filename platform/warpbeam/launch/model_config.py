"""The config of a model that is named by path, or whose tokenizer is, so that the plan can count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.job import Job
    from warpbeam.storage import StorageConfig


def read_model_config(job: Job, root: Path, config: StorageConfig) -> dict[str, Any] | None:
    """The model's config; None where the job says all there is to know, or the user's own code builds the model.

    Raises:
        UserError: there is no such model.
        InfraError: the place it is in cannot be reached.
    """
    if job.code.model is not None:
        return None
    from warpbeam.data.tokenizer_files import local_folder

    if job.model.path is None:
        given, tokenizer = job.model.config, job.model.tokenizer
        if given is None or "vocab_size" in given or not isinstance(tokenizer, str):
            return None
        entries = _entries(local_folder(tokenizer, root, config) / "tokenizer.json")
        return given | {"vocab_size": entries} if entries else None
    folder = local_folder(job.model.path, root, config, revision=job.model.revision)
    path = folder / "config.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{job.model.path} is not a model: it has no config.json",
            fix="`model.path` names a folder in Hugging Face layout: config.json, safetensors, tokenizer",
            reason="missing_model",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{job.model.path}/config.json is not JSON", why=str(error), reason="bad_model") from error
    return found


def _entries(path: Path) -> int | None:
    """Ids of a tokenizer.json, as the engine sizes an embedding; None where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]  # a table of ids, or (unigram) a list in their order
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        last: int = max([*ids, *(token["id"] for token in content.get("added_tokens", []))])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None  # preparation loads it with all care, and says what is wrong
    return last + 1

"""The config.json of the model that a job names by path, so that the plan can count parameters and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.job import Job
    from warpbeam.storage import StorageConfig


def read_model_config(job: Job, root: Path, config: StorageConfig) -> dict[str, Any] | None:
    """The model's config; None for a model from scratch or one that the user's own code builds.

    Raises:
        UserError: there is no such model.
        InfraError: the place it is in cannot be reached.
    """
    if job.model.path is None or job.code.model is not None:
        return None
    from warpbeam.data.tokenizer_files import local_folder

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
    except ValueError as error:
        raise UserError(f"{job.model.path}/config.json is not JSON", why=str(error), reason="bad_model") from error
    return found

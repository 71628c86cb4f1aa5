"""The config of a model that is named by path, or whose tokenizer is, so that the plan can count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.data.tokenizer_files import check_embedding, local_folder
from warpbeam.errors import UserError
from warpbeam.plan.config_keys import foreign_keys, misspelt_keys

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
    if job.model.path is None:
        given, tokenizer = job.model.config, job.model.tokenizer
        if given is None or not isinstance(tokenizer, str) or ("vocab_size" in given and "://" in tokenizer):
            return None  # nothing is fetched only to be compared: preparation does that
        entries = _entries(local_folder(tokenizer, root, config) / "tokenizer.json")
        check_embedding(entries or 0, given.get("vocab_size"))
        return given | {"vocab_size": entries} if entries and "vocab_size" not in given else None
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
    check_keys(found, f"{job.model.path}/config.json")
    _check_tokenizer(job, root, config, folder, found)
    return found


def check_keys(config: dict[str, Any], where: str) -> None:
    """Raises UserError where a key that decides nothing stands in the place of one that does: what that decides is then
    a default that nobody asked for."""
    wrong = {key: near for key, near in misspelt_keys(config).items() if near not in config}
    foreign = foreign_keys(config)
    if wrong or foreign:
        lacking = {**foreign, **wrong}
        raise UserError(
            f"{where} has no key {' or '.join(lacking.values())}, but {' and '.join(lacking)}",
            why="; ".join(f"{config['model_type']} calls it {own}" for own in foreign.values()),
            fix="; ".join(f"write `{near}` for `{key}`" for key, near in lacking.items()),
            reason="bad_model_shape",
        )


def _check_tokenizer(job: Job, root: Path, config: StorageConfig, folder: Path, model: dict[str, Any]) -> None:
    """Whether the embedding has a row for each entry, where both numbers are at hand."""
    given, rows = job.model.tokenizer, model.get("vocab_size")
    own = isinstance(given, str)
    if isinstance(rows, int) and not (own and "://" in str(given)):
        tokens = local_folder(str(given), root, config) if own else folder
        check_embedding(_entries(tokens / "tokenizer.json") or 0, rows)


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

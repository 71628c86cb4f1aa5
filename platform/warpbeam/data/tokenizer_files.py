"""A model folder's small files (tokenizer, template, config) on this machine, wherever the model is.

Objects go to a cache under WARPBEAM_HOME by their ETags, so that a changed tokenizer is fetched anew and an unchanged
one never again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.errors import UserError
from warpbeam.storage.hub import hub_away

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
)


def has_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder brings a chat template, by its files alone."""
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return True  # not to be told here; loading it will


def local_folder(
    path: str, root: Path, config: StorageConfig | None, *, revision: str = "main", with_code: bool = False
) -> Path:
    """The folder on this machine that holds a model's small files.

    Args:
        path: `hf://ORG/NAME`, `s3://BUCKET/PREFIX`, or a local folder (relative to `root`).
        with_code: also Python files (`trust_remote_code`).

    Raises:
        UserError: there is no such folder, repository or revision, or nothing of a tokenizer in it.
        InfraError: the Hub cannot be reached.
    """
    if path.startswith("hf://"):
        return _from_hub(path, revision, with_code)
    if path.startswith("s3://"):
        return _from_store(path, config, with_code)
    folder = root / Path(path.removeprefix("file://")).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {os.path.abspath(folder)}",
            why="file://, s3:// and hf:// paths are written in full; others start at the job file's folder",
            fix="mend `model.path` or `model.tokenizer` in the job file; hf://ORG/NAME is a model of the Hub's",
            reason="missing_model",
        )
    return folder.absolute()


def _from_store(uri: str, config: StorageConfig | None, with_code: bool) -> Path:
    from warpbeam.storage import open_uri
    from warpbeam.storage.embedded import home

    store, key = open_uri(uri, config)
    prefix = f"{key}/" if key else ""
    wanted = {}
    for info in store.list(prefix):
        name = info.key.removeprefix(prefix)
        if name in NAMES or (with_code and name.endswith(".py") and "/" not in name):
            wanted[name] = info
    if not wanted:
        raise UserError(
            f"there is no model at {uri}",
            why=f"none of {', '.join(NAMES[:3])}, ... is below it",
            fix="mend the path in the job file; `warpbeam list` and the export's last line name what was exported",
            reason="missing_model",
        )
    stamps = "\n".join([uri, *(f"{name} {info.etag}" for name, info in sorted(wanted.items()))])
    folder = home() / "cache" / "models" / hashlib.sha256(stamps.encode()).hexdigest()[:32]
    for name, info in wanted.items():
        if not (folder / name).is_file():
            store.download(info.key, folder / name)
    return folder


def _from_hub(uri: str, revision: str, with_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository = _repository(uri)
    patterns = [*NAMES, *(["*.py"] if with_code else [])]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except GatedRepoError as error:
        fix = f"accept its terms on https://huggingface.co/{repository} and set HF_TOKEN (secrets: in the job file)"
        raise UserError(f"{uri} is gated", why="access must be granted first", fix=fix, reason="gated_model") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{uri} has no revision {revision}", reason="missing_model") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"there is no {uri}",
            why="the Hub knows no such repository, or it is private and HF_TOKEN gives no access",
            fix="look for its name on https://huggingface.co/models, or set HF_TOKEN",
            reason="missing_model",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise hub_away(uri, error) from error


def _repository(uri: str) -> str:
    """`ORG/NAME`. Raises UserError for what cannot be one, whatever the Hub knows."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = uri.removeprefix("hf://").rstrip("/")
    why = "a repository is named by its owner and its name, with one slash between them"
    if name.count("/") == 1:
        try:
            validate_repo_id(name)
            return name
        except HFValidationError as error:
            why = str(error)
    raise UserError(
        f"{uri} is no name of a model on the Hub",
        why=why if name else "nothing is named",
        fix="write hf://ORG/NAME, for example `hf://Qwen/Qwen2.5-0.5B`",
        reason="bad_model",
    )


def check_embedding(entries: int, rows: int | None) -> None:
    """Raise UserError for a tokenizer with more entries than the model's embedding has rows (None: not known)."""
    if rows is not None and entries > rows:
        raise UserError(
            f"the tokenizer has {entries} entries, the model's embedding only {rows} rows",
            why="ids from the difference have no embedding",
            fix="use the model's own tokenizer; of a model from scratch, set vocab_size in model.config to "
            f"{entries} or more",
            reason="vocabulary_too_large",
        )

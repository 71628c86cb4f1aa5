"""The tokenizer of a job: loaded and checked.

Whatever would silently ruin a training run is refused or said here, before anything is spent: no chat template, two
different ones, a template that never closes a turn, more entries than the embedding has rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warpbeam.data.chat import check_template, end_of_turn_id
from warpbeam.data.files import read_text_file
from warpbeam.data.tokenizer_files import check_embedding, local_folder
from warpbeam.data.tokenizer_training import PADDING, train_tokenizer
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

__all__ = [
    "check_tokenizer",
    "digest",
    "end_of_turn_id",
    "load_folder",
    "load_tokenizer",
    "read_template",
    "save_tokenizer",
    "stop_ids",
    "train_tokenizer",
    "vocabulary_size",
]

log = logging.getLogger(__name__)

SENTENCEPIECES = ("spiece.model", "sentencepiece.bpe.model")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", *SENTENCEPIECES, "tekken.json")
"""Where the entries are; transformers makes an empty tokenizer of a folder that has none of them."""
PAD_CANDIDATES = (PADDING, "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>", "<unk>")
"""Entries that may serve as padding when a tokenizer names none."""


class ModelSource(Protocol):
    """What of job.Model matters here."""

    @property
    def path(self) -> str | None: ...
    @property
    def revision(self) -> str: ...
    @property
    def trust_remote_code(self) -> bool: ...
    @property
    def config(self) -> Mapping[str, Any] | None: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def chat_template(self) -> str | None: ...


def load_tokenizer(
    model: ModelSource, root: Path, config: StorageConfig | None, *, notes: list[str] | None = None
) -> Any:
    """The job's tokenizer, with its padding token and chat template settled.

    Args:
        model: `tokenizer` (else `path`) says where it is; `chat_template` overrides the template it comes with.
        root: relative paths start here.
        notes: what a person should know is appended here (and logged).

    Returns:
        A fast Hugging Face tokenizer.

    Raises:
        UserError: there is none, it cannot be loaded, it is not a fast one, or the model's embedding is too small.
    """
    where = model.tokenizer or model.path
    if not isinstance(where, str):
        raise UserError(
            "there is no tokenizer to load",
            why="the job trains its own" if where is not None else "model has neither path nor tokenizer",
            fix="set model.tokenizer to a path, or to {train: {vocab_size: 4096}}",
            reason="no_tokenizer",
        )
    revision = model.revision if where == model.path else "main"
    folder = local_folder(where, root, config, revision=revision, with_code=model.trust_remote_code)
    settings = _model_settings(model, root, config)
    tokenizer = load_folder(
        folder,
        where,
        trust_remote_code=model.trust_remote_code,
        chat_template=read_template(model.chat_template, root) if model.chat_template else None,
        model_type=settings.get("model_type") if where != model.path else None,
        notes=notes,
    )
    rows = settings.get("vocab_size")
    check_tokenizer(tokenizer, chat=False, embedding_rows=rows if isinstance(rows, int) else None)
    return tokenizer


def load_folder(
    folder: Path,
    where: str = "",
    *,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    model_type: str | None = None,
    notes: list[str] | None = None,
) -> Any:
    """The tokenizer in a folder on this machine, such as an export; else as `load_tokenizer`.

    Args:
        where: what to call the folder in messages.
        chat_template: instead of its own.
        model_type: of the model it is for; None: as the folder's config.json says.
    """
    where = where or str(folder)
    said: list[str] = []
    tokenizer = _load(folder, where, trust_remote_code, model_type)
    if chat_template:
        tokenizer.chat_template = chat_template
    else:
        _note_two_templates(folder, where, said)
    settle_padding(tokenizer, said)
    _note_date(tokenizer, said)
    for note in said:
        log.warning(note)
    if notes is not None:
        notes.extend(said)
    return tokenizer


def check_tokenizer(tokenizer: Any, *, chat: bool, embedding_rows: int | None = None) -> None:
    """What must hold before training.

    Args:
        chat: the data are conversations, so a template is needed that closes an assistant's turn with a special token.
        embedding_rows: the model's vocab_size; larger than the tokenizer is fine (padded for speed).

    Raises:
        UserError: with what to do.
    """
    check_embedding(vocabulary_size(tokenizer), embedding_rows)
    if chat:
        check_template(tokenizer)


def vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest id the tokenizer can produce."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def stop_ids(tokenizer: Any) -> tuple[int, ...]:
    """Every id that generation should stop at: the end of a turn and the end token, for generation_config.json."""
    ids = set()
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    if tokenizer.chat_template:
        try:
            ids.add(end_of_turn_id(tokenizer))
        except UserError as error:
            log.warning("no end of turn is known: %s", error.what)
    return tuple(sorted(ids))


def digest(tokenizer: Any) -> str:
    """Names what the tokenizer does: the same in every process, another when any id of any text could differ."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend.pop("truncation", None)
    backend.pop("padding", None)
    parts = {
        "backend": backend,
        "template": tokenizer.chat_template,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "opening": tokenizer("", verbose=False)["input_ids"],
    }
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write the files that `AutoTokenizer.from_pretrained(folder)` loads the same tokenizer from."""
    tokenizer.save_pretrained(folder)


def read_template(given: str, root: Path) -> str:
    """A chat template: the text itself, or the file of that name."""
    if "{" in given or "\n" in given:
        return given
    return read_text_file(root / Path(given).expanduser())


def settle_padding(tokenizer: Any, notes: list[str]) -> None:
    """Give a tokenizer without padding token one, without a new entry (the embedding has no row for it).

    What carries loss and what is attended to goes by position, never by id, so even the end token would do.
    """
    if tokenizer.pad_token_id is not None:
        return
    known = tokenizer.get_vocab()
    for token in PAD_CANDIDATES:
        if token in known and token != tokenizer.eos_token:
            tokenizer.pad_token = token
            break
    else:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is not None:
        notes.append(f"the tokenizer has no padding token: {tokenizer.pad_token} is used (padding never carries loss)")


def _model_settings(model: ModelSource, root: Path, config: StorageConfig | None) -> Mapping[str, Any]:
    """The model's config.json: its type and the rows of its embedding matter here.

    transformers takes a tokenizer's class, and with it how text is cut into words, from the model's type too: what is
    trained on must be what it will load beside the exported model.
    """
    if model.config is not None:
        return model.config
    if model.path is None:
        return {}
    return _read_json(local_folder(model.path, root, config, revision=model.revision) / "config.json")


def _load(folder: Path, where: str, trust_remote_code: bool, model_type: str | None) -> Any:
    from transformers import CONFIG_MAPPING, AutoTokenizer

    if not any((folder / name).is_file() for name in VOCABULARIES) and not any(folder.glob("*.tiktoken")):
        raise UserError(
            f"there is no tokenizer in {where}",
            why=f"it has none of {', '.join(VOCABULARIES)}",
            fix="name the folder that `tokenizer.save_pretrained(FOLDER)` wrote: model.tokenizer",
            reason="no_tokenizer",
        )
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    if model_type in CONFIG_MAPPING:
        options["config"] = CONFIG_MAPPING[model_type]()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError, UnicodeDecodeError) as error:
        code = "trust_remote_code" in str(error)
        raise UserError(
            f"the tokenizer of {where} cannot be loaded",
            why=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            fix="set model.trust_remote_code: true if you trust its code" if code else "check its tokenizer files",
            reason="bad_tokenizer",
        ) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer of {where} is a slow one ({type(tokenizer).__name__})",
            why="only fast tokenizers know which characters a token came from, which decides what carries loss",
            fix="convert it once: AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)",
            reason="slow_tokenizer",
        )
    return tokenizer


def _note_two_templates(folder: Path, where: str, notes: list[str]) -> None:
    """A template may be in a file of its own or in tokenizer_config.json; transformers takes the file."""
    own = folder / "chat_template.jinja"
    other = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if own.is_file() and isinstance(other, str) and other.strip() != read_text_file(own).strip():
        notes.append(
            f"{where} has two different chat templates: chat_template.jinja is used, "
            "the one in tokenizer_config.json is not"
        )


def _read_json(path: Path) -> dict[str, Any]:
    """A settings file; empty when there is none that can be read (whoever needs it says so)."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _note_date(tokenizer: Any, notes: list[str]) -> None:
    template = str(tokenizer.chat_template or "")
    if "strftime_now" in template and "date_string" not in template:
        notes.append("the chat template prints today's date, so data prepared on another day has other tokens")

"""A model folder as it is served: tokenizer, chat template, end tokens, sampling defaults, and what is odd about it.

Everything that can be wrong with a folder is found here, before the engine starts; oddities that do not prevent serving
become notes (in the log, in `deploy`'s output and in /v1/models).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpbeam.checkpoint.weights import HfWeights
from warpbeam.errors import UserError


@dataclass(frozen=True)
class SamplingDefaults:
    """Used where a request says nothing: the model's own generation_config.json, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A local model folder that has been read and checked."""

    path: Path
    tokenizer: Any
    """transformers' PreTrainedTokenizerBase."""
    end_ids: tuple[int, ...]
    """Tokens that end an answer: generation_config.json's and the tokenizer's."""
    max_positions: int
    """The longest context of the architecture."""
    vocabulary: int
    """Rows of the embedding; may exceed the tokenizer's."""
    defaults: SamplingDefaults
    notes: tuple[str, ...]

    @property
    def chat_template(self) -> str | None:
        """None: chat is refused, text completions work."""
        template = self.tokenizer.chat_template
        return template if template else None

    def never_sampled(self) -> list[int]:
        """Embedding rows that stand for no token (padding for speed)."""
        known = set(self.tokenizer.get_vocab().values())
        return [token_id for token_id in range(self.vocabulary) if token_id not in known]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text as the user sees it: no special tokens, spaces as generated."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def open_model_folder(path: Path) -> ModelFolder:
    """Read a local folder in Hugging Face's format.

    Raises:
        UserError: a file is missing or broken, naming it.
    """
    from transformers import AutoConfig, AutoTokenizer

    check_files(path)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False).get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error}", reason="model_broken") from error

    generation = _read_json(path / "generation_config.json")
    notes = [*_template_notes(path, tokenizer), *_generation_notes(generation)]
    end_ids = _ids(generation.get("eos_token_id", config.eos_token_id)) | _ids(tokenizer.eos_token_id)
    if not end_ids:
        notes.append("neither generation_config.json nor the tokenizer names an end token: answers end by length only")
    vocabulary = int(config.vocab_size)
    highest = max(tokenizer.get_vocab().values())
    if highest >= vocabulary:
        notes.append(
            f"the tokenizer's ids reach {highest}, the embedding has {vocabulary} rows: texts that need the ids beyond "
            "are refused"
        )
    return ModelFolder(
        path=path,
        tokenizer=tokenizer,
        end_ids=tuple(sorted(token_id for token_id in end_ids if token_id < vocabulary)),
        max_positions=int(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length),
        vocabulary=vocabulary,
        defaults=_sampling_defaults(generation),
        notes=tuple(notes),
    )


def check_files(path: Path) -> None:
    """What can be seen without torch or transformers, so in milliseconds: all files there, none cut off.

    Raises:
        UserError: naming the file.
    """
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path} holds no model: config.json is missing",
            fix="give a folder in Hugging Face's format (`warpbeam export RUN` writes one)",
            reason="model_not_found",
        )
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        _read_json(path / name)
    HfWeights(path)


def _template_notes(path: Path, tokenizer: Any) -> list[str]:
    """transformers reads chat_template.jinja first; a different one in tokenizer_config.json is then dead text."""
    file = path / "chat_template.jinja"
    in_config = _read_json(path / "tokenizer_config.json").get("chat_template")
    if file.is_file() and isinstance(in_config, str) and in_config.strip() != file.read_text("utf-8").strip():
        return [
            "chat_template.jinja and tokenizer_config.json hold different chat templates: chat_template.jinja is used"
        ]
    if not tokenizer.chat_template:
        return ["the tokenizer has no chat template: /v1/chat/completions is refused, /v1/completions works"]
    return []


def _generation_notes(generation: dict[str, Any]) -> list[str]:
    penalty = generation.get("repetition_penalty")
    if penalty not in (None, 1, 1.0):
        return [f"generation_config.json asks for repetition_penalty {penalty}: this engine does not apply it"]
    return []


def _sampling_defaults(generation: dict[str, Any]) -> SamplingDefaults:
    if not generation.get("do_sample"):
        return SamplingDefaults()
    top_k = generation.get("top_k")
    return SamplingDefaults(
        temperature=float(generation.get("temperature") or 1.0),
        top_p=float(generation.get("top_p") or 1.0),
        top_k=int(top_k) if top_k else None,
    )


def _ids(value: int | Sequence[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", reason="model_broken") from error
    return value if isinstance(value, dict) else {}

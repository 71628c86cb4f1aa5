"""Write a job file for a person to edit: the keys that matter, each with what it means, nothing else."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from warpbeam.job import JOB_SCHEMA

SMALL_MODEL: Final[dict[str, Any]] = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def job_yaml(
    *,
    name: str,
    train_paths: list[str],
    eval_paths: list[str] | None = None,
    method: str = "sft",
    data_format: str = "auto",
    fields: dict[str, str] | None = None,
    seq_len: int = 1024,
    model_path: str | None = None,
    model_config: dict[str, Any] | None = None,
    tokenizer: str | int = 4096,
    epochs: float | None = 1,
    max_steps: int | None = None,
    global_batch: int = 16,
    lr: float | None = None,
    accelerators: int = 1,
    every_steps: int | None = 100,
    notes: dict[str, str] | None = None,
) -> str:
    """A commented job file; `load_job` reads it.

    Args:
        fields: our field names -> the data's own, where they differ.
        model_path: weights to begin from; without, a small model from scratch (`model_config` or about 4M parameters).
        tokenizer: for a model from scratch: a path, or the vocabulary of one to train.
        lr: default 1e-5 for given weights, 1e-3 from scratch.
        notes: key (`seq_len`, `format`, ...) -> a comment that replaces ours, such as what was seen in the data.
    """
    note = _COMMENTS | (notes or {})
    source = ({"format": data_format} if data_format != "auto" else {}) | ({"fields": fields} if fields else {})
    learning_rate = lr if lr is not None else (1e-5 if model_path else 1e-3)
    train = {"method": method, "epochs": epochs, "max_steps": max_steps, "global_batch": global_batch}
    train |= {"lr": learning_rate, "warmup": 0.03}
    sections = {
        "model": [_row("path", model_path, note)] if model_path else _scratch(model_config, tokenizer, note),
        "data": [
            *_sources("train", train_paths, source, note["format"]),
            *_sources("eval", eval_paths or [], source, note["eval"]),
            _row("seq_len", seq_len, note),
        ],
        "train": [_row(key, value, note) for key, value in train.items() if value is not None],
        "resources": [_row("accelerators", accelerators, note)],
        "checkpoint": [_row("every_steps", every_steps, note)] if every_steps is not None else [],
    }
    head = [f"schema: {JOB_SCHEMA}", _row("name", name, note, indent=0)]
    body = [line for title, rows in sections.items() if rows for line in ("", f"{title}:", *rows)]
    return "\n".join(head + body) + "\n"


_COMMENTS: Final[dict[str, str]] = {
    "name": "the run's id: the same command again resumes it",
    "path": "hf://ORG/NAME, s3://BUCKET/PREFIX or a local folder",
    "config": "from scratch: a Hugging Face config.json's keys",
    "tokenizer": "or the path of a ready one",
    "format": "files, folders or patterns; s3:// or relative to this file",
    "eval": "held out: its loss is printed and picks the best checkpoint",
    "seq_len": "tokens in a row; several examples share one",
    "method": "sft: conversations; pretrain: plain text",
    "epochs": "passes over the data; may be a fraction",
    "max_steps": "optimizer steps; whichever of the two ends first",
    "global_batch": "rows of seq_len in one optimizer step, over all accelerators",
    "lr": "peak learning rate of a cosine schedule",
    "warmup": "below 1: a fraction of all steps",
    "accelerators": "GPUs; on a machine without: processes",
    "every_steps": "a killed run loses at most these steps",
}


def _row(key: str, value: object, notes: dict[str, str], *, indent: int = 2) -> str:
    return f"{' ' * indent}{key}: {_flow(value)}{_after(notes[key])}"


def _after(comment: str) -> str:
    return f"  # {comment}" if comment else ""


def _sources(part: str, paths: list[str], source: dict[str, Any], comment: str) -> list[str]:
    if not paths:
        return []
    return [f"  {part}:" + _after(comment), *(f"    - {_flow({'path': path} | source)}" for path in paths)]


def _scratch(config: dict[str, Any] | None, tokenizer: str | int, notes: dict[str, str]) -> list[str]:
    chosen = {"train": {"vocab_size": tokenizer}} if isinstance(tokenizer, int) else tokenizer
    sizes = [f"    {key}: {_flow(value)}" for key, value in (config or SMALL_MODEL).items()]
    return ["  config:" + _after(notes["config"]), *sizes, _row("tokenizer", chosen, notes)]


def _flow(value: object) -> str:
    """A value on one line. JSON is YAML: quoting, true and null alike; plain words need no quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        mantissa, exponent, power = f"{value:g}".partition("e")
        return f"{mantissa}e{int(power)}" if exponent else mantissa  # 1e-5, not 1e-05
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


_PLAIN: Final = re.compile(r"(?!(true|false|null|yes|no|on|off|inf|nan)$)[a-z][a-z_-]*[a-z]")

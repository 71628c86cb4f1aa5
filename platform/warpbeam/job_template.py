"""Write a job file for a person to edit: the keys that matter, each with what it means, nothing else."""

from __future__ import annotations

import json
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
    comment = _COMMENTS | (notes or {})
    if lr is None:
        lr = 1e-5 if model_path else 1e-3
    source = {"format": data_format} if data_format != "auto" else {}
    lines = [f"schema: {JOB_SCHEMA}", f"name: {_scalar(name)}{_after(comment['name'])}", "", "model:"]
    if model_path:
        lines.append(f"  path: {_scalar(model_path)}{_after(comment['path'])}")
    else:
        chosen = {"train": {"vocab_size": tokenizer}} if isinstance(tokenizer, int) else tokenizer
        lines += ["  config:" + _after(comment["config"]), *_mapping(model_config or SMALL_MODEL, indent=4)]
        lines.append(f"  tokenizer: {_flow(chosen)}{_after(comment['tokenizer'])}")
    lines += ["", "data:", "  train:" + _after(comment["format"])]
    lines += [
        f"    - {_flow({'path': path} | source | ({'fields': fields} if fields else {}))}" for path in train_paths
    ]
    if eval_paths:
        lines += ["  eval:" + _after(comment["eval"])]
        lines += [
            f"    - {_flow({'path': path} | source | ({'fields': fields} if fields else {}))}" for path in eval_paths
        ]
    lines += [
        f"  seq_len: {seq_len}{_after(comment['seq_len'])}",
        "",
        "train:",
        f"  method: {method}{_after(comment['method'])}",
    ]
    if epochs is not None:
        lines.append(f"  epochs: {epochs:g}{_after(comment['epochs'])}")
    if max_steps is not None:
        lines.append(f"  max_steps: {max_steps}{_after(comment['max_steps'])}")
    lines += [
        f"  global_batch: {global_batch}{_after(comment['global_batch'])}",
        f"  lr: {_number(lr)}{_after(comment['lr'])}",
        f"  warmup: 0.03{_after(comment['warmup'])}",
        "",
        "resources:",
        f"  accelerators: {accelerators}{_after(comment['accelerators'])}",
    ]
    if every_steps is not None:
        lines += ["", "checkpoint:", f"  every_steps: {every_steps}{_after(comment['every_steps'])}"]
    return "\n".join(lines) + "\n"


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


def _after(comment: str) -> str:
    return f"  # {comment}" if comment else ""


def _number(value: float) -> str:
    """`1e-05` -> `1e-5`."""
    mantissa, exponent, power = f"{value:g}".partition("e")
    return f"{mantissa}e{int(power)}" if exponent else mantissa


def _scalar(value: object) -> str:
    """JSON is YAML: quoting, true, null and numbers alike."""
    return json.dumps(value, ensure_ascii=False)


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    return _scalar(value)


def _mapping(values: dict[str, Any], *, indent: int) -> list[str]:
    return [f"{' ' * indent}{key}: {_flow(value)}" for key, value in values.items()]

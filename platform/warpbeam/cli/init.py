"""`warpbeam init NAME --data PATH`: write a job file by looking at the data."""

from __future__ import annotations

import json as json_module
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Json, Pool
from warpbeam.cli.output import print_json, say, warn
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.data.inspect import DataReport
    from warpbeam.pool import Pool as PoolFile

GLOBAL_BATCH = 8
STEPS_WANTED = 200
BYTES_PER_TOKEN = 4.0


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run's name; NAME/job.yaml is written.")],
    data: Annotated[str, typer.Option("--data", metavar="PATH", help="A file, a folder, a pattern; local or s3://.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PATH", help="hf://, s3:// or a folder. Default: from scratch."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="PATH", help="Of a model from scratch; ready token ids need theirs."),
    ] = None,
    eval_data: Annotated[str | None, typer.Option("--eval", metavar="PATH", help="Held-out data.")] = None,
    team: Annotated[str, typer.Option("--team")] = "default",
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Look at data (format, fields, lengths) and write a job file that trains on it."""
    from warpbeam.data.inspect import inspect_data
    from warpbeam.job import check_name
    from warpbeam.pool import load_pool

    check_name(name)
    folder = Path(name)
    path = folder / "job.yaml"
    if path.exists():
        raise UserError(
            f"{path} exists already", fix="choose another name, or remove the file", reason="job_file_exists"
        )
    chosen = load_pool(pool).pool
    report = inspect_data(data, Path.cwd(), chosen.storage_config())
    _check_tokens(report, model, tokenizer)
    _check_tokenizer(tokenizer)
    text = job_text(
        name, team, report, model=model, tokenizer=tokenizer, eval_data=eval_data, folder=folder, pool=chosen
    )
    _write_checked(path, text)
    if json:
        print_json({"job": str(path), "format": report.format, "seq_len": report.seq_len, "records": report.records})
        return
    _show(report)
    say(f"\nwrote {path}; next:")
    say(f"  $ warpbeam plan {path}")
    say(f"  $ warpbeam run {path}")


def _check_tokens(report: DataReport, model: str | None, tokenizer: str | None) -> None:
    """Ready token ids are worth nothing without the tokenizer that made them."""
    if model is None and tokenizer is None and report.format == "tokens":
        raise UserError(
            f"{report.path} holds ready token ids: which tokenizer made them?",
            why="the ids mean something in that tokenizer, and in no other",
            fix="the same command with --tokenizer PATH (a model from scratch), or --model PATH",
            reason="tokens_need_their_tokenizer",
        )


def _check_tokenizer(tokenizer: str | None) -> None:
    """A folder on this machine must hold one; what is in a store or a hub, the run looks up."""
    if tokenizer is None or "://" in tokenizer:
        return
    folder = Path(tokenizer).expanduser()
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise UserError(
            f"--tokenizer {tokenizer}: there is no tokenizer in {folder.absolute()}",
            why="it has neither tokenizer.json nor tokenizer_config.json",
            fix="name the folder of a tokenizer or of a model with one, s3://... or hf://ORG/NAME",
            reason="no_tokenizer",
        )


def _write_checked(path: Path, text: str) -> None:
    """Write the job file; nothing stays when the arguments made it one that no job may be."""
    from warpbeam.job import load_job

    made = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        load_job(path)
    except UserError:
        path.unlink()
        if made:
            path.parent.rmdir()
        raise


def job_text(
    name: str,
    team: str,
    report: DataReport,
    *,
    model: str | None,
    tokenizer: str | None,
    eval_data: str | None,
    folder: Path,
    pool: PoolFile,
) -> str:
    """The job file, with a comment where a choice was made."""
    ranks = min(2, pool.accelerators)
    renames = ", ".join(f"{key}: {value}" for key, value in report.fields.items())
    fields = f", fields: {{{renames}}}" if renames else ""
    source = f"{{path: {_quoted(relative(report.path, folder))}, format: {report.format}{fields}}}"
    held_out = f"[{{path: {_quoted(relative(eval_data, folder))}}}]" if eval_data else "[]"
    hint = "" if eval_data else "          # held-out data of the same shape shows whether it learns: [{path: ...}]"
    seen = f"{report.records:,} records looked at; {report.longer} of them are longer and are cut or split"
    return f"""\
schema: warpbeam/job/v1
name: {name}
team: {team}

{_model_text(model, tokenizer, report.seq_len, folder)}
data:
  train: [{source}]
  eval: {held_out}{hint}
  seq_len: {report.seq_len}                  # {seen}

train:
  method: {report.method}
  epochs: {_epochs(report)}
  global_batch: {GLOBAL_BATCH}                # rows of seq_len in one optimizer step
  lr: {"1e-5" if model else "2e-3"}
  min_lr_ratio: 0.1
  warmup: 0.03
  seed: 0

resources: {{accelerators: {ranks}}}
checkpoint: {{every_steps: 50, keep: 3}}
"""


def relative(path: str, folder: Path) -> str:
    """A path as seen from the job file's folder."""
    if "://" in path or os.path.isabs(path) or path.startswith("~"):
        return path
    return os.path.relpath(path, folder)


def _entries(tokenizer: str) -> int | None:
    """Of a tokenizer on this machine, so that a small model gets no embedding of the family's default size."""
    path = Path(tokenizer.removeprefix("file://")).expanduser() / "tokenizer.json"
    try:
        found = json_module.loads(path.read_bytes())
        ids = [*dict(found["model"]["vocab"]).values(), *(token["id"] for token in found["added_tokens"])]
        return int(max(ids)) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return None  # elsewhere, or of another make: the default is large enough


def _model_text(model: str | None, tokenizer: str | None, seq_len: int, folder: Path) -> str:
    if model is not None:
        own = f", tokenizer: {_quoted(relative(tokenizer, folder))}" if tokenizer else ""
        return f"model: {{path: {_quoted(relative(model, folder))}{own}}}\n"
    chosen = _quoted(relative(tokenizer, folder)) if tokenizer else "{train: {vocab_size: 4096}}"
    entries = _entries(tokenizer) if tokenizer else None
    rows = f"\n    vocab_size: {entries}" if entries else ""
    return f"""\
model:                             # small, from scratch; your own: {{path: "hf://ORG/NAME"}}
  config:
    model_type: qwen2{rows}
    hidden_size: 256
    num_hidden_layers: 4
    num_attention_heads: 4
    num_key_value_heads: 2
    intermediate_size: 640
    max_position_embeddings: {max(1024, seq_len)}
    tie_word_embeddings: true
  tokenizer: {chosen}
"""


def _epochs(report: DataReport) -> int:
    """Passes that make about `STEPS_WANTED` steps, between 1 and 10."""
    rows = report.bytes / BYTES_PER_TOKEN / report.seq_len
    return max(1, min(10, round(STEPS_WANTED * GLOBAL_BATCH / max(1.0, rows))))


def _quoted(text: str) -> str:
    plain = re.fullmatch(r"[\w./~@+-]+", text)
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _show(report: DataReport) -> None:
    from warpbeam.data.prepare import MAX_SKIPPED_SHARE

    count = len(report.expansion.files)
    files = "1 file" if count == 1 else f"{count} files"
    say(f"{report.path}: {files}, {report.records:,} records looked at, format {report.format}")
    if report.other_formats:
        say(f"  could also be read as: {', '.join(report.other_formats)}")
    if report.fields:
        say(f"  your fields: {', '.join(f'{value} as {key}' for key, value in report.fields.items())}")
    about = "" if report.exact else " (estimated from characters)"
    say(f"  tokens of a record{about}: half up to {report.percentile(0.5)}, 99% up to {report.percentile(0.99)}")
    most = max(count for _, count in report.histogram)
    for tokens, count in report.histogram:
        say(f"  {tokens:>7} {'█' * max(1, round(40 * count / most))} {count}")
    for place in report.bad_places:
        warn(place)
    if report.bad:
        count = sum(report.bad.values())
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(report.bad.items()))
        warn(f"{count} of {report.records:,} records looked at are bad ({reasons}), and a bad record ends a run")
        few = count <= MAX_SKIPPED_SHARE * report.records
        warn("mend them" + (", or write `on_bad_record: skip` under data:" if few else ": too many to be skipped"))

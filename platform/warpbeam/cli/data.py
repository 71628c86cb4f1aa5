"""`warpbeam data prepare|show`: prepare a job's data without training; see exactly what a step trains on."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpbeam.cli.options import JobFile, Json, Pool, RunName, Store, Team, open_runs, place_options
from warpbeam.cli.output import note, out, print_json, say, warn

if TYPE_CHECKING:
    from warpbeam.data.prepare import PreparedData
    from warpbeam.data.reader import MicroBatch
    from warpbeam.job import LoadedJob
    from warpbeam.storage.config import StorageConfig

app = typer.Typer(help="Prepare data; show what a step trains on.", no_args_is_help=True)


@app.command("prepare")
def prepare(
    job: JobFile,
    no_ray: Annotated[bool, typer.Option("--no-ray", help="In this process, where there is no Ray.")] = False,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Read, render, tokenise and pack a job's data into the store.

    Unchanged data is prepared once; a preparation that was broken off goes on.
    """
    from warpbeam.job import load_job
    from warpbeam.pool import load_pool
    from warpbeam.storage.check import check_store

    loaded, chosen = load_job(job), load_pool(pool).pool
    config = chosen.storage_config(loaded.job.checkpoint.store)
    check_store(config)
    if no_ray:
        found = _prepare_all(loaded, config, ray=False, quiet=json)
    else:
        from warpbeam.launch.own_code import python_path
        from warpbeam.launch.ray_session import RayNeeds, RaySession

        session = RaySession(chosen, RayNeeds(1, 600.0, python_path(loaded.root)))
        try:
            session.up()
            found = _prepare_all(loaded, config, ray=True, quiet=json)
        finally:
            session.close()
    if json:
        print_json({split: _facts(data) for split, data in found.items()})
        return
    for split, data in found.items():
        facts = _facts(data)
        say(f"{split}: {facts['rows']:,} rows, {facts['loss_tokens']:,} loss tokens in {data.prefix}")
    say(f"  $ warpbeam run {job}{place_options(pool)}")


def _prepare_all(loaded: LoadedJob, config: StorageConfig, *, ray: bool, quiet: bool) -> dict[str, PreparedData]:
    from warpbeam.data.prepare import prepare as carry_out
    from warpbeam.data.prepare_plan import Split
    from warpbeam.storage.connect import open_store

    splits: list[Split] = ["train", "eval"] if loaded.job.data.eval else ["train"]
    found: dict[str, PreparedData] = {}
    for split in splits:
        found[split] = carry_out(
            loaded.job,
            loaded.root,
            open_store(config),
            config,
            split=split,
            ray=ray,
            progress=None if quiet else _progress(split),
        )
        if not quiet:
            for text in found[split].notes:
                note(text)
            for text in found[split].outcome:
                note(f"{split}: {text}")
    return found


def _progress(split: str) -> Any:
    def show(done: int, of: int, rows: int, tokens: int) -> None:
        note(f"{split}: {done} of {of} tasks, {rows:,} rows, {tokens:,} tokens")

    return show


def _facts(data: PreparedData) -> dict[str, Any]:
    index = data.index
    return {
        "fingerprint": data.fingerprint,
        "prefix": data.prefix,
        "rows": index.total_rows,
        "loss_tokens": index.total_loss_tokens,
        "notes": [*data.notes, *data.outcome],
    }


@app.command("show")
def show(
    run: RunName,
    step: Annotated[int, typer.Option("--step", min=1, help="Optimizer step, from 1.")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Print at most so many rows.")] = 4,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Print what a step trains on: sample ids, where the records came from, the text.

    What carries loss stands between double brackets.
    """
    from warpbeam.data.dataset import open_dataset
    from warpbeam.data.tokenizer_store import load_stored_tokenizer
    from warpbeam.launch.begin import stored_job
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    stored = stored_job(view)
    prefix = view.data_prefix()
    if stored is None or prefix is None:
        warn(f"{view.run} has not begun to train: what it trains on is not known yet")
        raise typer.Exit(1)
    job = stored[0]
    dataset = open_dataset(view.store, prefix)
    tokenizer = load_stored_tokenizer(
        view.store, dataset.sources.tokenizer or "", trust_remote_code=job.model.trust_remote_code
    )
    shown = []
    for number, batch in enumerate(_rows_of_step(dataset, job, step)):
        sample = batch["sample_ids"][0]
        text = "" if number >= rows and not json else marked_text(tokenizer, batch)
        places = [f"{file}:{line}" for file, line in dataset.describe(sample)]
        shown.append({"sample_id": sample, "records": places, "text": text})
    if json:
        print_json(shown)
        return
    for row in shown:
        say(f"{row['sample_id']}  {', '.join(row['records'])}")
        if row["text"]:
            out.print(row["text"], markup=False)
            say("")


def _rows_of_step(dataset: Any, job: Any, step: int) -> Any:
    """The step's rows one by one, in their order, as the reader gives them to a single rank."""
    import tempfile

    from warpbeam.data.reader import BatchReader

    with tempfile.TemporaryDirectory(prefix="warpbeam-show-") as folder:
        reader = BatchReader(
            dataset,
            job.train.seed,
            job.train.global_batch,
            rank=0,
            world=1,
            micro_batch=1,
            accumulation=job.train.global_batch,
            start_step=step - 1,
            cache_dir=Path(folder),
            end_step=step,
            weights=[source.weight for source in job.data.train],
        )
        with reader:
            yield from reader


def marked_text(tokenizer: Any, batch: MicroBatch) -> str:
    """The row's text, example by example; what carries loss is between [[ and ]]."""
    end = _end_of_examples(batch)
    ids, labels, segments = (batch[name][0][:end].tolist() for name in ("input_ids", "labels", "segment_ids"))
    examples: dict[int, list[tuple[int, bool]]] = {}
    for token, label, segment in zip(ids, labels, segments, strict=True):
        examples.setdefault(segment, []).append((token, label != -100))
    return "\n---\n".join(_marked(tokenizer, example) for example in examples.values())


def _marked(tokenizer: Any, tokens: list[tuple[int, bool]]) -> str:
    """One example. A token alone may be half a character, or lose the space before it: so the text up to the end of
    each stretch is decoded, and what the stretch adds to it is what it says.
    """
    text, shown, done = "", "", 0
    for carries, stretch in groupby(tokens, key=lambda pair: pair[1]):
        done += len(list(stretch))
        ids = [token for token, _ in tokens[:done]]
        before, text = text, tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        added = text[len(before) :]
        shown += f"[[{added}]]" if carries else added
    return shown


def _end_of_examples(batch: MicroBatch) -> int:
    """Where the padding at the row's end begins: a last segment of one token repeated, none of which carries loss."""
    ids, labels, segments = (batch[name][0].tolist() for name in ("input_ids", "labels", "segment_ids"))
    begins = segments.index(segments[-1])
    is_padding = len(set(ids[begins:])) == 1 and set(labels[begins:]) == {-100}
    return begins if is_padding else len(ids)

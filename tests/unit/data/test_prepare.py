from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warpbeam.data import prepare as prepare_module
from warpbeam.data.dataset import Dataset, open_dataset
from warpbeam.data.index import FAILED, INDEX, SOURCES, part_key, preparation_error
from warpbeam.data.part import decode_rows, stride
from warpbeam.data.prepare import PreparedData, prepare, start_preparation
from warpbeam.data.prepare_plan import TaskSpec, plan_preparation
from warpbeam.data.prepare_task import TaskResult, TaskRunner
from warpbeam.data.sources import Task
from warpbeam.data.tokenizer_store import load_stored_tokenizer
from warpbeam.errors import PlatformError, UserError, WarpbeamError
from warpbeam.job import Job, parse_job
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import open_store
from warpbeam.storage.store import ObjectStore

SEQ_LEN = 64
LONG = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a b " * 200}]})
"""Bad, because no whole turn fits, which only a tokenizer can tell."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


class Desk:
    """A folder with data, a store, and a job that can be changed key by key."""

    def __init__(self, root: Path, tokenizer: Path) -> None:
        self.root = root
        self.config = StorageConfig(uri=(root / "store").as_uri(), kind="local")
        self.store: ObjectStore = open_store(self.config)
        self.job: dict[str, Any] = {
            "schema": "warpbeam/job/v1",
            "name": "tiny",
            "model": {"config": {"model_type": "qwen2"}, "tokenizer": str(tokenizer)},
            "data": {"train": [{"path": "chats.jsonl"}], "seq_len": SEQ_LEN},
            "train": {"method": "sft", "max_steps": 1, "global_batch": 4, "lr": 1e-4},
        }

    def parsed(self) -> Job:
        return parse_job(self.job)

    def chats(self, name: str, count: int, *, first: int = 0, extra: list[str] | None = None) -> Path:
        lines = [json.dumps({"messages": chat(number)}) for number in range(first, first + count)]
        return self.write(name, lines + (extra or []))

    def write(self, name: str, lines: list[str]) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        return path

    def prepare(self, **options: Any) -> PreparedData:
        return prepare(self.parsed(), self.root, self.store, self.config, ray=False, **options)

    def written(self) -> dict[str, str]:
        """What was written, so that a second preparation can be seen to write nothing."""
        return {info.key: info.etag for info in self.store.list("")}


def chat(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"What is {number} + 1?"},
        {"role": "assistant", "content": f"It is {number + 1}." * (1 + number % 3)},
    ]


@pytest.fixture
def desk(tmp_path: Path, tokenizer_folder: Path) -> Desk:
    made = Desk(tmp_path, tokenizer_folder)
    made.chats("chats.jsonl", 40)
    return made


def examples_of(data: Dataset) -> Iterator[tuple[list[int], list[int]]]:
    """(ids, labels) of every example in every row, padding left out."""
    for task in range(len(data.sources.tasks)):
        block = np.frombuffer(data.store.get(part_key(data.prefix, task)), np.uint8).reshape(-1, stride(data.seq_len))
        rows = decode_rows(block, data.seq_len)
        padding = (block[:, 4 * data.seq_len :] & 4) != 0
        for r in range(len(block)):
            for segment in range(rows.segment_ids[r].max() + 1):
                mine = (rows.segment_ids[r] == segment) & ~padding[r]
                if mine.any():
                    yield rows.input_ids[r][mine].tolist(), rows.labels[r][mine].tolist()


def test_every_conversation_is_in_the_rows_once_with_loss_on_the_answers(desk: Desk) -> None:
    prepared = desk.prepare()
    data = open_dataset(desk.store, prepared.prefix)
    tokenizer = load_stored_tokenizer(desk.store, prepared.tokenizer)
    texts, answers = [], []
    for ids, labels in examples_of(data):
        texts.append(tokenizer.decode(ids))
        answers.append(tokenizer.decode([label for label in labels if label != -100]))
    assert sorted(texts) == sorted(tokenizer.apply_chat_template(chat(n), tokenize=False) for n in range(40))
    assert sorted(answers) == sorted(chat(n)[1]["content"] + "<|im_end|>" for n in range(40))
    assert prepared.index.stats.records == 40
    assert prepared.index.stats.examples == 40
    assert prepared.index.total_loss_tokens == prepared.index.stats.loss_tokens
    assert sorted(line for sample in sample_ids(data) for _, line in data.describe(sample)) == list(range(1, 41))


def sample_ids(data: Dataset) -> list[str]:
    return [f"s{t.source}/{n:06d}:{row}" for n, t in enumerate(data.sources.tasks) for row in range(data.index.rows[n])]


def test_unchanged_data_is_prepared_once(desk: Desk) -> None:
    first = desk.prepare()
    before = desk.written()
    assert desk.prepare() == first
    assert desk.written() == before


def test_weights_and_seed_prepare_nothing_anew(desk: Desk) -> None:
    desk.chats("more.jsonl", 10, first=100)
    desk.job["data"]["train"] = [{"path": "chats.jsonl", "weight": 1.0}, {"path": "more.jsonl", "weight": 2.0}]
    first = desk.prepare()
    before = desk.written()
    desk.job["data"]["train"][1]["weight"] = 5.0
    desk.job["train"] |= {"seed": 3, "global_batch": 8, "lr": 1e-5}
    assert desk.prepare().prefix == first.prefix
    assert desk.written() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job["data"].update(seq_len=48),
        lambda job: job["data"].update(packing=False),
        lambda job: job["data"].update(over_length="drop"),
        lambda job: job["data"].update(on_bad_record="skip"),
        lambda job: job["model"].update(chat_template="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"),
        lambda job: job["data"]["train"][0].update(fields={"messages": "messages"}),
    ],
)
def test_what_decides_a_byte_of_a_part_makes_another_data_set(desk: Desk, change: Any) -> None:
    def fingerprint() -> str:
        return plan_preparation(desk.parsed(), desk.root, desk.store, desk.config).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    change(desk.job)
    assert fingerprint() != before


def test_the_method_decides_what_becomes_of_long_texts(desk: Desk) -> None:
    desk.write("texts.jsonl", [json.dumps({"text": "one two three " * 40})])
    desk.job["data"]["train"] = [{"path": "texts.jsonl"}]
    plans = []
    for method in ("sft", "pretrain"):
        desk.job["train"]["method"] = method
        plans.append(plan_preparation(desk.parsed(), desk.root, desk.store, desk.config).fingerprint)
    assert plans[0] != plans[1]


def test_a_copy_of_the_job_s_folder_is_the_same_data(desk: Desk, tmp_path: Path) -> None:
    """As `ray job submit --working-dir .` makes one: other paths, other times."""
    first = desk.prepare()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "chats.jsonl").write_bytes((desk.root / "chats.jsonl").read_bytes())
    desk.root = copy
    assert desk.prepare() == first


def test_large_local_data_goes_by_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpbeam.data.settle.HASHED_BYTES", 10)
    first = desk.prepare()
    assert desk.prepare() == first
    os.utime(desk.root / "chats.jsonl", (1, 1))
    assert desk.prepare().fingerprint != first.fingerprint


def test_a_changed_source_makes_another_data_set(desk: Desk) -> None:
    first = desk.prepare()
    desk.chats("chats.jsonl", 41)
    assert desk.prepare().fingerprint != first.fingerprint


def test_a_killed_preparation_goes_on_and_ends_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        desk.chats(f"many/{number}.jsonl", 10, first=10 * number)
    desk.job["data"]["train"] = [{"path": "many"}]
    prepared = desk.prepare()
    whole = {info.key: desk.store.get(info.key) for info in desk.store.list(prepared.prefix)}
    lost = [INDEX, "part-000002.json", "part-000004.json", "part-000004.bin"]
    for name in lost:
        desk.store.delete(f"{prepared.prefix}/{name}")
    desk.store.put(part_key(prepared.prefix, 2), b"killed while writing thi")
    encoded: list[int] = []
    encode = TaskRunner.encode

    def counting(self: TaskRunner, number: int, task: Task) -> TaskResult:
        encoded.append(number)
        return encode(self, number, task)

    monkeypatch.setattr(TaskRunner, "encode", counting)
    assert desk.prepare() == prepared
    assert sorted(encoded) == [2, 4]
    assert {info.key: desk.store.get(info.key) for info in desk.store.list(prepared.prefix)} == whole


def test_bad_records_are_named_by_file_and_line(desk: Desk) -> None:
    desk.chats("chats.jsonl", 3, extra=["", "{broken", '{"messages": [{"role": "user", "content": "and?"}]}'])
    with pytest.raises(UserError) as caught:
        desk.prepare()
    assert "chats.jsonl:5: broken_json" in caught.value.what
    assert "chats.jsonl:6: no_loss" in caught.value.what
    assert caught.value.reason == "bad_records"
    assert "skip" in caught.value.fix


def test_a_broken_line_is_told_before_anything_is_written(desk: Desk) -> None:
    desk.chats("chats.jsonl", 3, extra=["{broken"])
    with pytest.raises(UserError, match=r"chats\.jsonl:4: broken_json"):
        plan_preparation(desk.parsed(), desk.root, desk.store, desk.config)
    assert not any("/part-" in key or key.endswith(SOURCES) for key in desk.written())


def test_a_few_skipped_records_are_counted(desk: Desk) -> None:
    desk.chats("chats.jsonl", 60, extra=["{broken", "[1]"])
    desk.job["data"]["on_bad_record"] = "skip"
    prepared = desk.prepare()
    assert prepared.index.stats.bad == {"broken_json": 1, "not_an_object": 1}
    assert prepared.index.stats.examples == 60
    assert len(prepared.index.stats.places) == 2
    told = list(prepared.outcome)
    assert told[0] == "2 of 62 records skipped as bad: 1 broken_json, 1 not_an_object"
    assert "chats.jsonl:61: broken_json" in told[1]
    assert desk.prepare().outcome == prepared.outcome  # found ready, and told all the same


@pytest.mark.parametrize(("rule", "done"), [("drop", "2 dropped"), ("split", "2 split"), ("truncate", "2 truncated")])
def test_what_was_done_with_long_records_is_told(desk: Desk, rule: str, done: str) -> None:
    long = json.dumps({"messages": [turn for number in range(20) for turn in chat(number)]})
    desk.chats("chats.jsonl", 60, extra=[long, long])
    desk.job["data"]["over_length"] = rule
    (told,) = desk.prepare().outcome
    assert told == f"2 of 62 records longer than {SEQ_LEN} tokens: {done}"


def test_nothing_is_told_where_every_record_was_used_whole(desk: Desk) -> None:
    assert desk.prepare().outcome == ()


def test_files_that_gave_nothing_are_named(desk: Desk) -> None:
    desk.chats("chats-1.jsonl", 5)
    for name in ("chats-2.jsonl", "chats-4.jsonl"):
        desk.write(name, ["", ""])
    desk.job["data"]["train"] = [{"path": "chats-*.jsonl"}]
    (told,) = desk.prepare().outcome
    assert told == "2 files gave nothing to learn from: chats-2.jsonl, chats-4.jsonl"


def test_a_format_found_by_looking_must_go_with_the_job_too(desk: Desk) -> None:
    desk.job["train"]["method"] = "pretrain"
    with pytest.raises(UserError, match="format messages, but method pretrain"):
        desk.prepare()
    desk.write("ids.jsonl", [json.dumps({"input_ids": [5, 6, 7]})] * 3)
    desk.job["train"]["method"] = "sft"
    desk.job["data"]["train"] = [{"path": "ids.jsonl"}]
    desk.job["model"]["tokenizer"] = {"train": {"vocab_size": 300}}
    with pytest.raises(UserError, match=r"ready token ids, but model\.tokenizer is to be trained") as caught:
        desk.prepare()
    assert "tokenizer: PATH" in caught.value.fix


def test_more_than_a_twentieth_skipped_is_an_error(desk: Desk) -> None:
    desk.chats("chats.jsonl", 20, extra=["{broken", "[1]"])
    desk.job["data"]["on_bad_record"] = "skip"
    with pytest.raises(UserError, match="2 of 22 records are bad") as caught:
        desk.prepare()
    assert "1 broken_json, 1 not_an_object" in caught.value.why
    assert "chats.jsonl:21" in caught.value.what


def test_no_records_names_the_path(desk: Desk) -> None:
    desk.write("blank.jsonl", ["", "  ", ""])
    desk.job["data"]["train"] = [{"path": "chats.jsonl"}, {"path": "blank.jsonl", "format": "messages"}]
    with pytest.raises(UserError, match=r"no records in blank\.jsonl"):
        desk.prepare()


def test_a_table_without_rows_is_no_records_too(desk: Desk) -> None:
    with pq.ParquetWriter(desk.root / "empty.parquet", pa.schema([("text", pa.string())])):
        pass
    desk.job["data"]["train"] = [{"path": "empty.parquet", "format": "text"}]
    with pytest.raises(UserError, match=r"no records in empty\.parquet"):
        desk.prepare()


def test_ray_is_never_started_by_the_way(desk: Desk) -> None:
    with pytest.raises(PlatformError, match="not connected to Ray"):
        prepare(desk.parsed(), desk.root, desk.store, desk.config, ray=True)


def test_a_source_of_which_nothing_is_left_says_why(desk: Desk) -> None:
    desk.job["data"] |= {"seq_len": 8, "over_length": "drop"}
    with pytest.raises(UserError, match="nothing to learn from") as caught:
        desk.prepare()
    assert caught.value.why == "40 dropped as too long"


def test_the_failed_marker_is_left_and_removed_by_the_next_start(desk: Desk) -> None:
    desk.chats("chats.jsonl", 3, extra=[LONG])
    with pytest.raises(UserError):
        desk.prepare()
    plan = plan_preparation(desk.parsed(), desk.root, desk.store, desk.config)
    assert isinstance(preparation_error(desk.store, plan.prefix), UserError)
    with pytest.raises(UserError):
        desk.prepare()
    desk.chats("chats.jsonl", 3)
    good = desk.prepare()
    assert desk.store.head(f"{good.prefix}/{FAILED}") is None


def test_the_tokenizer_is_trained_once_on_the_training_data(desk: Desk) -> None:
    desk.chats("eval.jsonl", 5, first=500)
    desk.job["model"]["tokenizer"] = {"train": {"vocab_size": 300}}
    desk.job["data"]["eval"] = [{"path": "eval.jsonl"}]
    train = desk.prepare()
    before = desk.written()
    evaluation = desk.prepare(split="eval")
    assert evaluation.tokenizer == train.tokenizer
    assert evaluation.prefix != train.prefix
    assert len(load_stored_tokenizer(desk.store, train.tokenizer)) <= 300
    assert {key: tag for key, tag in desk.written().items() if key in before} == before


def test_own_rendering(desk: Desk) -> None:
    desk.write("pairs.jsonl", [json.dumps({"q": f"{n}?", "a": f"{n}!"}) for n in range(9)])
    desk.write(
        "own_render_for_pairs.py",
        [
            "def render(record, tokenizer):",
            "    if record['q'] == '3?':",
            "        return None",
            "    turns = [('user', record['q']), ('assistant', record['a'])]",
            "    return {'messages': [{'role': role, 'content': text} for role, text in turns]}",
        ],
    )
    desk.job["data"]["train"] = [{"path": "pairs.jsonl"}]
    desk.job["code"] = {"render": "own_render_for_pairs:render"}
    prepared = desk.prepare()
    assert prepared.index.stats.left_out == 1
    assert prepared.index.stats.examples == 8
    (desk.root / "own_render_for_pairs.py").open("a").write("# changed\n")
    assert plan_preparation(desk.parsed(), desk.root, desk.store, desk.config).fingerprint != prepared.fingerprint


def test_own_rendering_that_does_not_import_is_the_user_s_error(desk: Desk) -> None:
    desk.job["code"] = {"render": "no_such_module_here:render"}
    with pytest.raises(UserError, match="cannot be imported"):
        desk.prepare()


def test_in_the_background_with_progress(desk: Desk) -> None:
    seen: list[tuple[int, int, int, int]] = []
    preparation = start_preparation(
        desk.parsed(), desk.root, desk.store, desk.config, ray=False, progress=lambda *now: seen.append(now)
    )
    data = open_dataset(desk.store, preparation.prefix)
    prepared = preparation.wait()
    assert prepared is not None
    assert preparation.done
    assert seen == [(1, 1, prepared.index.total_rows, prepared.index.stats.tokens)]
    assert data.seq_len == SEQ_LEN
    again = start_preparation(desk.parsed(), desk.root, desk.store, desk.config, ray=False)
    assert again.wait() == prepared


def test_an_error_in_the_background_reaches_the_caller_and_the_readers(desk: Desk) -> None:
    desk.chats("chats.jsonl", 3, extra=[LONG])
    preparation = start_preparation(desk.parsed(), desk.root, desk.store, desk.config, ray=False)
    with pytest.raises(UserError, match="over_length"):
        preparation.wait()
    assert isinstance(preparation.error, UserError)
    read = preparation_error(desk.store, preparation.prefix)
    assert read is not None
    assert read.what == preparation.error.what


def test_a_preparation_can_be_stopped(desk: Desk) -> None:
    for number in range(4):
        desk.chats(f"many/{number}.jsonl", 5, first=10 * number)
    desk.job["data"]["train"] = [{"path": "many"}]
    started, may_go_on = threading.Event(), threading.Event()

    def progress(*_: int) -> None:
        started.set()
        may_go_on.wait(10)

    preparation = start_preparation(desk.parsed(), desk.root, desk.store, desk.config, ray=False, progress=progress)
    started.wait(10)
    preparation.cancel(timeout_s=0)
    may_go_on.set()
    with pytest.raises(WarpbeamError, match="was stopped"):
        preparation.wait()
    assert isinstance(preparation.error, WarpbeamError)
    assert preparation.error.reason == "stopped"
    assert sum("/part-" in key and key.endswith(".json") for key in desk.written()) == 1


def test_an_unexpected_failure_is_told_to_the_readers_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "run_inline", lambda plan: (_ for _ in [1 // 0]))
    with pytest.raises(WarpbeamError, match="broke off") as caught:
        desk.prepare()
    assert "ZeroDivisionError" in caught.value.why


def test_a_spec_goes_through_json_without_secrets(desk: Desk) -> None:
    desk.job["code"] = {"render": "json:loads"}
    spec = plan_preparation(desk.parsed(), desk.root, desk.store, desk.config).spec
    assert TaskSpec.from_json(spec.to_json()) == spec
    assert "secret" not in spec.to_json().lower()


def test_what_was_passed_over_is_noted(desk: Desk) -> None:
    desk.chats("mixed/a.jsonl", 3)
    desk.write("mixed/_SUCCESS", [])
    (desk.root / "mixed/empty.jsonl").write_bytes(b"")
    desk.job["data"]["train"] = [{"path": "mixed"}]
    notes = "\n".join(desk.prepare().notes)
    assert "empty.jsonl" in notes
    assert "hidden" in notes

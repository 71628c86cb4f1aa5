"""The input side on a real S3 server, with documents far larger than a task, and without a network to the Hub."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.data.conftest import TEXTS
from warpbeam.data.examples import Encoder, TaskStats, describe_places, iter_examples, settle_format
from warpbeam.data.inspect import inspect_data
from warpbeam.data.sources import Expansion, cut_tasks, expand
from warpbeam.data.tokenizer import digest, load_tokenizer, save_tokenizer, train_tokenizer
from warpbeam.errors import UserError
from warpbeam.job import DataSource, Model
from warpbeam.storage import StorageConfig
from warpbeam.storage.embedded import ensure_server


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS * 20, vocab_size=400)


class Bucket:
    """Objects put by a plain client below a prefix of the test's own."""

    def __init__(self, home: Path, config: StorageConfig) -> None:
        server = ensure_server(home)
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
        self.bucket = server.bucket
        self.prefix = f"data-input/{uuid4().hex[:12]}"
        self.config = config
        self.uri = f"s3://{self.bucket}/{self.prefix}"

    def put(self, name: str, data: bytes) -> str:
        self._client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}", Body=data)
        return f"{self.uri}/{name}"

    def expand(self, path: str) -> Expansion:
        return expand(f"{self.uri}/{path}" if path else self.uri, Path("/"), self.config)

    def names(self, path: str) -> list[str]:
        return [file.uri.removeprefix(f"{self.uri}/") for file in self.expand(path).files]


@pytest.fixture
def bucket(warpbeam_home: Path, s3: StorageConfig) -> Bucket:
    return Bucket(warpbeam_home, s3)


def lines(start: int, count: int) -> bytes:
    rows = ({"prompt": f"question {n}", "completion": f"answer {n} 🙂"} for n in range(start, start + count))
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def prepare(
    source: DataSource, root: Path, config: StorageConfig | None, tokenizer: Any, task_bytes: int = 1 << 22
) -> tuple[list[list[int]], list[TaskStats]]:
    """Ids of all examples, and the counts of each task."""
    files = expand(source.path, root, config).files
    settled = source.model_copy(update={"format": settle_format(source, files, config)})
    encoder = Encoder(tokenizer, seq_len=64)
    out, counts = [], []
    for task in cut_tasks(files, task_bytes, config=config):
        counts.append(TaskStats())
        out += [example.ids.tolist() for example in iter_examples(task, settled, encoder, config, counts[-1])]
    return out, counts


def test_prefixes_and_patterns_pass_over_what_is_no_data(bucket: Bucket) -> None:
    for n in range(6):
        bucket.put(f"d/part-{n:04d}.jsonl", b"" if n == 3 else b"\n\n" if n == 4 else lines(n, 2))
    for name in ("d/", "d/_SUCCESS", "d/part-0001.jsonl.crc", "d/.hidden/a.jsonl", "d-eval/a.jsonl"):
        bucket.put(name, b"" if name.endswith(("/", "_SUCCESS")) else lines(0, 1))
    found = bucket.expand("d")
    whole = [f"d/part-{n:04d}.jsonl" for n in (0, 1, 2, 4, 5)]
    assert (
        bucket.names("d") == bucket.names("d/") == bucket.names("d/*.jsonl") == bucket.names("**/part*.jsonl") == whole
    )
    assert found.passed_over == {"folder_marker": 1, "hidden": 2, "empty": 1, "unreadable_type": 1}
    assert found.empty == (f"{bucket.uri}/d/part-0003.jsonl",)
    assert bucket.names("d*/*.jsonl") == ["d-eval/a.jsonl", *whole]


def test_nothing_below_a_prefix_is_an_error_within_seconds(bucket: Bucket) -> None:
    bucket.put("none/part-0000.jsonl", b"")
    bucket.put("none/_SUCCESS", b"")
    began = time.monotonic()
    for path in ("none", "none/*.jsonl", "missing", "missing/*.jsonl", "none/part-0000.jsonl"):
        with pytest.raises(UserError, match="no records") as caught:
            bucket.expand(path)
        assert path in caught.value.what
    assert time.monotonic() - began < 10


def test_odd_names_are_names_before_they_are_patterns(bucket: Bucket) -> None:
    for name in ("a b+c#1 %41?.jsonl", "w[1].jsonl", "w1.jsonl", "ä/日本.jsonl"):
        bucket.put(name, lines(0, 1))
        assert bucket.names(name) == [name]
    source = DataSource(path=f"{bucket.uri}/a b+c#1 %41?.jsonl")
    (task,) = cut_tasks(expand(source.path, Path("/"), bucket.config).files)
    assert settle_format(source, [task.file], bucket.config) == "prompt-completion"


@pytest.mark.parametrize("task_bytes", [1 << 12, 1 << 22])
def test_the_same_records_from_anywhere_give_the_same_ids(
    bucket: Bucket, tokenizer: Any, tmp_path: Path, task_bytes: int
) -> None:
    data = lines(0, 400)
    (tmp_path / "plain.jsonl").write_bytes(data)
    plain, counts = prepare(DataSource(path="plain.jsonl"), tmp_path, None, tokenizer, task_bytes)
    assert len(plain) == sum(count.lines for count in counts) == 400
    table = pa.Table.from_pylist([json.loads(line) for line in data.splitlines()])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    half = data.index(b"\n", len(data) // 2) + 1
    objects = {
        "a.jsonl": data,
        "a.jsonl.gz": gzip.compress(data[:half]) + gzip.compress(data[half:]),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
    }
    for name, stored in objects.items():
        path = bucket.put(name, stored)
        assert prepare(DataSource(path=path), tmp_path, bucket.config, tokenizer, task_bytes)[0] == plain


def test_a_bad_line_in_the_middle_of_an_object_is_named(bucket: Bucket, tokenizer: Any) -> None:
    path = bucket.put("a.jsonl", lines(0, 300) + b'{"prompt": \n' + lines(0, 300))
    _, counts = prepare(DataSource(path=path), Path("/"), bucket.config, tokenizer, task_bytes=1 << 12)
    (place,) = [place for count in counts for place in count.places]
    assert describe_places([place], bucket.config)[0].startswith(f"{path}:301: broken_json")


def test_an_object_that_changes_is_refused(bucket: Bucket, tokenizer: Any) -> None:
    path = bucket.put("a.jsonl", lines(0, 3))
    (task,) = cut_tasks(expand(path, Path("/"), bucket.config).files)
    bucket.put("a.jsonl", lines(1, 3))
    source = DataSource(path=path, format="prompt-completion")
    with pytest.raises(UserError, match="changed after it was listed"):
        list(iter_examples(task, source, Encoder(tokenizer, seq_len=64), bucket.config, TaskStats()))


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("cut.jsonl.gz", gzip.compress(lines(0, 500))[:-50], "end-of-stream"),
        ("plain.jsonl.gz", lines(0, 5), "Not a gzipped file"),
        ("plain.jsonl.zst", lines(0, 5), "not valid Zstandard"),
        ("plain.parquet", lines(0, 5), "magic bytes"),
    ],
)
def test_broken_objects_are_named_with_the_reason(bucket: Bucket, name: str, data: bytes, why: str) -> None:
    path = bucket.put(name, data)
    with pytest.raises(UserError, match=name) as caught:
        inspect_data(path, Path("/"), bucket.config, limit=100_000)
    assert why in caught.value.why


def test_a_tokenizer_in_a_bucket(bucket: Bucket, tokenizer: Any, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path / "tok")
    for file in (tmp_path / "tok").iterdir():
        bucket.put(f"model/{file.name}", file.read_bytes())
    bucket.put("model/model.safetensors", b"not fetched")
    model = Model(path=f"{bucket.uri}/model/")
    assert digest(load_tokenizer(model, tmp_path, bucket.config)) == digest(tokenizer)
    bucket.put("model/chat_template.jinja", b"{{ messages[0].content }}")
    assert digest(load_tokenizer(model, tmp_path, bucket.config)) != digest(tokenizer)
    with pytest.raises(UserError, match="there is no model at"):
        load_tokenizer(Model(path=f"{bucket.uri}/nothing"), tmp_path, bucket.config)


def run(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_enormous_document_is_windowed_in_bounded_memory(tokenizer: Any, tmp_path: Path) -> None:
    """500 short rows, one line of many megabytes among them and one more at the end without a line end."""
    size, at_end = 20_000_000, 4_000_000
    word = "warp beam "
    with open(tmp_path / "a.jsonl", "w") as file:
        for n in range(500):
            file.write(json.dumps({"text": f"short row {n}"}) + "\n")
            if n == 250:
                file.write('{"text": "' + word * (size // len(word)) + '"}\n')
        file.write('{"text": "' + word * (at_end // len(word)) + '"}')
    save_tokenizer(tokenizer, tmp_path / "tok")
    code = """
        import json, resource, sys
        from pathlib import Path
        from transformers import PreTrainedTokenizerFast
        from warpbeam.data.examples import Encoder, TaskStats, iter_examples
        from warpbeam.data.sources import cut_tasks, expand
        from warpbeam.job import DataSource
        folder = Path(sys.argv[1])
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tok")
        encoder = Encoder(tokenizer, seq_len=4096, method="pretrain")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tokens = records = short = 0
        for task in cut_tasks(expand("a.jsonl", folder, None).files):
            stats = TaskStats()
            for example in iter_examples(task, DataSource(path="a.jsonl", format="text"), encoder, None, stats):
                short += len(example.ids) < 20
            tokens += stats.tokens + stats.remainders
            records += stats.records
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(json.dumps([records, short, tokens, grown]))
    """
    records, short, tokens, grown = json.loads(run(code, str(tmp_path), OMP_NUM_THREADS="1"))
    per_word = len(tokenizer(word * 10_000)["input_ids"]) / 10_000
    assert records == 502
    assert short >= 500
    rows = sum(len(tokenizer(f"short row {n}")["input_ids"]) + 1 for n in range(500))
    assert tokens == pytest.approx(rows + per_word * ((size + at_end) // len(word)), rel=1e-4)
    assert grown < 10 * size, grown


def test_a_model_on_the_hub_without_a_network(tmp_path: Path) -> None:
    code = """
        from pathlib import Path
        from warpbeam.data.tokenizer import load_tokenizer
        from warpbeam.errors import WarpbeamError
        from warpbeam.job import Model
        try:
            load_tokenizer(Model(path="hf://nobody/nothing"), Path("/"), None)
        except WarpbeamError as error:
            print(error.owner, error.exit_code, error)
    """
    said = run(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert said.startswith("ml 2 hf://nobody/nothing is not on this machine, and HF_HUB_OFFLINE forbids to fetch it")
    nowhere = "http://127.0.0.1:9"
    said = run(code, HF_HUB_OFFLINE="0", HF_ENDPOINT=nowhere, HF_HOME=str(tmp_path), NO_PROXY="127.0.0.1")
    assert said.startswith("infra 3 hf://nobody/nothing could not be fetched")
    assert "copy the model to s3:// or a local folder" in said

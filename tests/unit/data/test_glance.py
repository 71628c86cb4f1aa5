"""What can be told of bad data before any worker is started."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from warpbeam.data.glance import refuse_bad_records
from warpbeam.data.sources import Task, cut_tasks, expand
from warpbeam.errors import UserError
from warpbeam.job import DataSource

GOOD = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
MESSAGES = [DataSource(path="x", format="messages")]


def tasks(root: Path, lines: list[str], name: str = "a.jsonl", task_bytes: int = 1 << 20) -> list[Task]:
    data = "".join(f"{line}\n" for line in lines).encode()
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return cut_tasks(expand(name, root, None).files, task_bytes)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{broken", "broken_json"),
        (json.dumps({"messages": [{"role": "user", "content": "q"}]}), "no_loss"),
        (
            json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "bot", "content": "a"}]}),
            "unknown_role",
        ),
        (
            json.dumps({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}),
            "no_loss",
        ),
        (json.dumps({"text": "t"}), "missing_field"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_bad_line_is_named(tmp_path: Path, bad: str, reason: str, name: str) -> None:
    found = tasks(tmp_path, [GOOD, "", GOOD, bad, GOOD], name)
    with pytest.raises(UserError) as caught:
        refuse_bad_records(found, MESSAGES, None)
    assert f"{name}:4: {reason}: " in caught.value.what
    assert "1 bad in the 4 records" in caught.value.why


def test_good_data_and_blank_texts_pass(tmp_path: Path) -> None:
    refuse_bad_records(tasks(tmp_path, [GOOD, "", GOOD]), MESSAGES, None)
    texts = [json.dumps({"text": text}) for text in ("one", " ", "")]
    refuse_bad_records(tasks(tmp_path, texts), [DataSource(path="x", format="text")], None)


def test_it_looks_no_further_than_the_limit(tmp_path: Path) -> None:
    found = tasks(tmp_path, [*[GOOD] * 50, "{broken"], task_bytes=500)
    size = sum(task.end - task.start for task in found)
    refuse_bad_records(found, MESSAGES, None, limit_bytes=size - 1)
    with pytest.raises(UserError, match=r"a\.jsonl:51: broken_json"):
        refuse_bad_records(found, MESSAGES, None, limit_bytes=size)

"""Examples of a task: what carries loss, what happens to what does not fit, and that everything is counted."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.data import templates
from warpbeam.data.encoder import OverLengthError
from warpbeam.data.examples import (
    Encoder,
    Example,
    TaskStats,
    describe_places,
    iter_examples,
    settle_format,
)
from warpbeam.data.formats import Completion, Conversation, Text, Tokens
from warpbeam.data.records import BadRecordError
from warpbeam.data.sample import sample_texts, spread
from warpbeam.data.sources import cut_tasks, expand
from warpbeam.errors import UserError
from warpbeam.job import DataSource


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def examples(
    path: Path, encoder: Encoder, source: DataSource, task_bytes: int = 1 << 20
) -> tuple[list[Example], list[TaskStats]]:
    out, stats = [], []
    for task in cut_tasks(expand(str(path), path.parent, None).files, task_bytes):
        stats.append(TaskStats())
        out += list(iter_examples(task, source, encoder, None, stats[-1]))
    return out, stats


def decoded(tokenizer: Any, example: Any) -> tuple[str, str]:
    return tokenizer.decode(example[0]), tokenizer.decode(np.asarray(example[0])[example[1]])


def encode(encoder: Encoder, record: Any) -> tuple[list[Any], TaskStats]:
    stats = TaskStats()
    return encoder.encode(record, stats), stats


def test_each_format_ends_in_what_the_model_should_say(tokenizer: Any, tmp_path: Path) -> None:
    asked, told = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nworld<|im_end|>\n", "world<|im_end|>"
    rows: dict[str, dict[str, Any]] = {
        "messages": {"messages": chat("hello", "world")},
        "sharegpt": {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "world"}]},
        "alpaca": {"instruction": "hello", "input": None, "output": "world"},
        "prompt-completion": {"prompt": "hello", "completion": "world"},
    }
    for name, row in rows.items():
        (example,), _ = examples(
            write(tmp_path / f"{name}.jsonl", [row]), Encoder(tokenizer, seq_len=64), DataSource(path="x", format=name)
        )  # type: ignore[arg-type]
        assert decoded(tokenizer, example) == (asked, told)
        assert (example.task_line, example.offset) == (1, 0)


def test_a_completion_without_a_template_is_joined_as_it_is(tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    (example,), _ = encode(Encoder(bare, seq_len=64), Completion("hello", " world"))
    assert decoded(bare, example) == ("hello world<|im_end|>", " world<|im_end|>")


def test_a_text_ends_with_the_end_token(tokenizer: Any) -> None:
    (example,), _ = encode(Encoder(tokenizer, seq_len=64), Text("the loom"))
    whole, loss = decoded(tokenizer, example)
    assert whole == "the loom<|im_end|>"
    assert whole.endswith(loss)
    assert example[1].tolist() == [False] + [True] * (len(example[0]) - 1)


def test_a_text_begins_with_the_beginning_token_where_the_tokenizer_adds_one(tokenizer: Any) -> None:
    from tokenizers import processors

    begins = copy.deepcopy(tokenizer)
    begins.bos_token = "<|endoftext|>"
    begins.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    (example,), _ = encode(Encoder(begins, seq_len=64), Text("the loom"))
    assert decoded(begins, example)[0] == "<|endoftext|>the loom<|im_end|>"
    (example,), _ = encode(Encoder(begins, seq_len=64), Conversation(chat("hello", "world")))
    assert decoded(begins, example)[0].startswith("<|im_start|>")


def test_a_tokenizer_without_end_token_cannot_end_a_text(tokenizer: Any) -> None:
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(UserError, match="no end token"):
        encode(Encoder(endless, seq_len=64), Text("the loom"))


def test_ready_tokens_are_taken_as_they_are(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, seq_len=8)
    (example,), _ = encode(encoder, Tokens([5, 6, 7], [0, 0, 1]))
    assert (example[0].tolist(), example[1].tolist()) == ([5, 6, 7], [False, False, True])
    assert example[0].dtype == np.int32
    (example,), _ = encode(encoder, Tokens([5, 6, 7]))
    assert example[1].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("ids", "mask", "reason", "words"),
    [
        ([5, 10**6], None, "bad_tokens", "id 1000000 is outside the vocabulary"),
        ([5, -1], None, "bad_tokens", "id -1"),
        ([5, 2**70], None, "bad_tokens", "whole numbers"),
        ([5, 1.5], None, "bad_tokens", "whole numbers"),
        ([5, "6"], None, "bad_tokens", "whole numbers"),
        ([[5], [6]], None, "bad_tokens", "whole numbers"),
        ([[5], 6], None, "bad_tokens", ""),
        ([5, None], None, "bad_tokens", "whole numbers"),
        ([5, 6], [1], "bad_tokens", "2 times 0 or 1"),
        ([5, 6], [1, 2], "bad_tokens", "2 times 0 or 1"),
        ([5, 6], [1, 0], "no_loss", "no token"),
        ([5], None, "no_loss", "no token"),
        ([], None, "no_loss", "empty"),
    ],
)
def test_wrong_tokens_are_named(tokenizer: Any, ids: Any, mask: Any, reason: str, words: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        encode(Encoder(tokenizer, seq_len=8), Tokens(ids, mask))
    assert caught.value.reason == reason
    assert words in caught.value.detail


THREE = Conversation(chat("one", "first answer", "two", "second answer", "three", "third answer"))


def test_truncation_keeps_whole_turns_with_their_end(tokenizer: Any) -> None:
    (whole,), _ = encode(Encoder(tokenizer, seq_len=4096), THREE)
    ends = [i + 1 for i, token in enumerate(whole[0]) if token == tokenizer.eos_token_id and whole[1][i]]
    for seq_len in range(ends[0], len(whole[0])):
        (example,), stats = encode(Encoder(tokenizer, seq_len=seq_len), THREE)
        assert len(example[0]) == max(end for end in ends if end <= seq_len)
        assert example[0].tolist() == whole[0][: len(example[0])].tolist()
        assert stats.truncated == 1
    with pytest.raises(BadRecordError, match="no whole assistant turn fits") as caught:
        encode(Encoder(tokenizer, seq_len=ends[0] - 1), THREE)
    assert caught.value.reason == "over_length"


def test_split_loses_no_token(tokenizer: Any) -> None:
    text = Text("the loom holds " * 50)
    (whole,), _ = encode(Encoder(tokenizer, seq_len=4096), text)
    windows, stats = encode(Encoder(tokenizer, seq_len=16), text)
    assert np.concatenate([ids for ids, _ in windows]).tolist() == whole[0].tolist()
    assert all(not loss[0] and loss[1:].all() for _, loss in windows)
    assert (stats.split, stats.remainders) == (1, 0)


def test_a_remainder_without_loss_is_left_out_and_counted(tokenizer: Any) -> None:
    windows, stats = encode(Encoder(tokenizer, seq_len=4, over_length="split"), Tokens([4, 5, 6, 7, 8]))
    assert [ids.tolist() for ids, _ in windows] == [[4, 5, 6, 7]]
    assert stats.remainders == 1


@pytest.mark.parametrize(
    ("method", "over_length", "record", "expected"),
    [
        ("sft", None, Text("a b c d e f g h i j"), "split"),
        ("sft", "truncate", Text("a b c d e f g h i j"), "truncated"),
        ("sft", "drop", Text("a b c d e f g h i j"), "dropped"),
        ("sft", None, Tokens(list(range(4, 20))), "truncated"),
        ("pretrain", None, Tokens(list(range(4, 20))), "split"),
        ("pretrain", "drop", Tokens(list(range(4, 20))), "dropped"),
    ],
)
def test_the_rule_for_what_does_not_fit(
    tokenizer: Any, method: Any, over_length: Any, record: Any, expected: str
) -> None:
    out, stats = encode(Encoder(tokenizer, seq_len=8, method=method, over_length=over_length), record)
    counts = {name: getattr(stats, name) for name in ("truncated", "split", "dropped")}
    assert counts == {"truncated": 0, "split": 0, "dropped": 0} | {expected: 1}
    assert len(out) == {"truncated": 1, "dropped": 0}.get(expected, len(out))
    assert all(len(ids) <= 8 for ids, _ in out)


def test_over_length_fail_names_the_record(tokenizer: Any, tmp_path: Path) -> None:
    encoder = Encoder(tokenizer, seq_len=8, over_length="fail")
    with pytest.raises(OverLengthError):
        encode(encoder, Text("word " * 20))
    path = write(tmp_path / "a.jsonl", [{"text": "a"}, "", {"text": "word " * 20}])
    with pytest.raises(UserError, match=r"a\.jsonl:3: \d+ tokens do not fit seq_len 8") as caught:
        examples(path, encoder, DataSource(path="x", format="text"), task_bytes=5)
    assert caught.value.reason == "over_length"


def test_bad_records_are_counted_and_the_first_are_kept_with_their_lines(tokenizer: Any, tmp_path: Path) -> None:
    good = {"messages": chat("hello", "world")}
    narrator = {"messages": [*chat("hello"), {"role": "narrator", "content": "x"}]}
    unanswered = {"messages": chat("hello")}
    path = write(tmp_path / "a.jsonl", [good, "{", "", narrator, good, unanswered, {"x": 1}, {"messages": []}, "[]"])
    for task_bytes in (1 << 20, 60):
        out, stats = examples(path, Encoder(tokenizer, seq_len=64), DataSource(path="x", format="messages"), task_bytes)
        assert len(out) == sum(s.examples for s in stats) == 2
        assert sum(s.records for s in stats) == 8
        assert sum(s.lines for s in stats) == 9
        reasons = [(reason, n) for s in stats for reason, n in s.bad.items()]
        assert sorted(reason for reason, n in reasons for _ in range(n)) == [
            "broken_json",
            "missing_field",
            "no_loss",
            "no_loss",
            "not_an_object",
            "unknown_role",
        ]
        places = describe_places([place for s in stats for place in s.places], None)
        assert places[0].startswith(f"{path}:2: broken_json: Expecting property name")
        assert places[1].startswith(f"{path}:4: unknown_role: turn 2 has the unknown role 'narrator'")
        assert places[2] == f"{path}:6: no_loss: no assistant turn that carries loss, so there is nothing to learn from"
    assert (
        len(examples(path, Encoder(tokenizer, seq_len=64), DataSource(path="x", format="messages"))[1][0].places) == 5
    )


def test_blank_texts_are_not_bad(tokenizer: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": ""}, {"text": "a b"}, {"text": " \n"}])
    out, (stats,) = examples(path, Encoder(tokenizer, seq_len=64), DataSource(path="x", format="text"))
    assert (len(out), stats.records, stats.blank, stats.bad) == (1, 3, 2, {})


def test_a_failing_template_is_a_bad_record_with_its_words(tokenizer: Any, tmp_path: Path) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = templates.MISTRAL
    path = write(tmp_path / "a.jsonl", [{"messages": [{"role": "system", "content": "s"}, *chat("hello", "world")]}])
    _, (stats,) = examples(path, Encoder(strict, seq_len=64), DataSource(path="x", format="messages"))
    assert stats.bad == {"template_failed": 1}
    assert "Only user and assistant roles are supported" in stats.places[0].detail


def test_no_template_at_all_is_not_a_bad_record(tokenizer: Any, tmp_path: Path) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    path = write(tmp_path / "a.jsonl", [{"messages": chat("hello", "world")}])
    with pytest.raises(UserError, match="no chat template"):
        examples(path, Encoder(bare, seq_len=64), DataSource(path="x", format="messages"))


@pytest.mark.parametrize(
    ("template", "reason"),
    [(templates.ENDLESS, "template_without_end"), (templates.OTHER_PROMPT, "template_not_prefix")],
)
def test_a_template_that_is_wrong_for_all_is_not_the_records_fault(
    tokenizer: Any, tmp_path: Path, template: str, reason: str
) -> None:
    wrong = copy.deepcopy(tokenizer)
    wrong.chat_template = template
    path = write(tmp_path / "a.jsonl", [{"messages": chat("hello", "world")}])
    with pytest.raises(UserError) as caught:
        examples(path, Encoder(wrong, seq_len=64), DataSource(path="x", format="messages"))
    assert caught.value.reason == reason


def test_a_template_that_wants_a_system_turn(tokenizer: Any, tmp_path: Path) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = templates.WANTS_SYSTEM
    path = write(tmp_path / "a.jsonl", [{"messages": chat("hello", "world"), "system": s} for s in ("s", None)])
    out, (stats,) = examples(path, Encoder(strict, seq_len=64), DataSource(path="x", format="messages"))
    assert (len(out), stats.bad) == (1, {"template_failed": 1})


def test_own_rendering(tokenizer: Any, tmp_path: Path) -> None:
    def render(record: dict[str, Any], tokenizer: Any) -> Any:
        kind = record["kind"]
        if kind == "fails":
            raise KeyError("answer")
        return {
            "chat": {"messages": chat("hello", "world")},
            "ids": {"input_ids": np.array([5, 6]), "loss_mask": [0, 1]},
            "out": None,
            "wrong": {"text": "x"},
            "wronger": 7,
            "no ids": {"input_ids": 7},
        }[kind]

    kinds = ["chat", "ids", "out", "fails", "wrong", "wronger", "no ids"]
    path = write(tmp_path / "a.jsonl", [{"kind": kind} for kind in kinds])
    out, (stats,) = examples(path, Encoder(tokenizer, seq_len=64, render=render), DataSource(path="x"))
    assert [example.task_line for example in out] == [1, 2]
    assert (stats.left_out, stats.bad) == (1, {"render_failed": 4})
    details = [re.sub(r":\d+ in", ": in", place.detail) for place in stats.places]
    assert details == [
        "KeyError: 'answer' (test_examples.py: in render)",
        "it must return messages, or input_ids and loss_mask, or None; got keys text",
        "it must return messages, or input_ids and loss_mask, or None; got int",
        "input_ids and loss_mask must be lists: 'int' object is not iterable",
    ]


def test_counts_add_up(tokenizer: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat("hello", "world" * n)} for n in range(1, 20)])
    out, (stats,) = examples(path, Encoder(tokenizer, seq_len=256), DataSource(path="x", format="messages"))
    assert stats.tokens == sum(len(example.ids) for example in out)
    assert stats.loss_tokens == sum(int(example.loss[1:].sum()) for example in out)
    assert not any(example.loss[0] for example in out)


def test_null_columns_make_no_difference(tokenizer: Any, tmp_path: Path) -> None:
    """A field that is null in one file and text in another (seen to break typed readers)."""
    write(tmp_path / "a.jsonl", [{"messages": chat("hello", "world"), "system": None, "meta": {}}] * 30)
    write(tmp_path / "b.jsonl", [{"messages": chat("hello", "world"), "system": "s", "meta": [[{"x": 1}]]}] * 30)
    source = DataSource(path=str(tmp_path))
    files = expand(source.path, tmp_path, None).files
    settled = source.model_copy(update={"format": settle_format(source, files, None)})
    encoder = Encoder(tokenizer, seq_len=64)
    (a, _), (b, _) = (examples(tmp_path / name, encoder, settled) for name in ("a.jsonl", "b.jsonl"))
    assert [decoded(tokenizer, e)[0].startswith("<|im_start|>system\ns<|im_end|>") for e in (a[0], b[0])] == [
        False,
        True,
    ]
    assert (len(a), len(b)) == (30, 30)
    assert settle_format(source, files[::-1], None) == "messages"


def test_the_format_is_settled_from_the_first_readable_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["{", "", {"x": None}, {"text": "a"}])
    files = expand(str(path), tmp_path, None).files
    assert settle_format(DataSource(path="x"), files, None) == "text"
    assert settle_format(DataSource(path="x", format="messages"), files, None) == "messages"
    blank = expand(str(write(tmp_path / "b.jsonl", ["", " "])), tmp_path, None).files
    with pytest.raises(UserError, match=r"no records: .*b\.jsonl"):
        settle_format(DataSource(path="x"), blank, None)
    broken = expand(str(write(tmp_path / "c.jsonl", ["", "{", "["])), tmp_path, None).files
    with pytest.raises(UserError, match=r"none of the first records of .*c\.jsonl") as caught:
        settle_format(DataSource(path="x"), broken, None)
    assert caught.value.why.startswith(f"{tmp_path}/c.jsonl:2: broken_json")


def test_texts_for_a_tokenizer_come_from_all_over(tmp_path: Path) -> None:
    rows = [{"messages": chat(f"question {n}", f"answer {n}"), "id": "not text of the format"} for n in range(400)]
    path = write(tmp_path / "a.jsonl", ["{", *rows])
    tasks = cut_tasks(expand(str(path), tmp_path, None).files, 1000)
    source = DataSource(path="x", format="messages")
    texts = list(sample_texts(tasks, [source], None))
    assert "user" not in texts
    assert "not text of the format" not in texts
    few = list(sample_texts(tasks, [source], None, limit_chars=1000))
    assert few[0] == "question 0"
    assert any(text > "question 39" for text in few)
    assert sum(map(len, few)) <= 1000
    assert "not text of the format" in list(sample_texts(tasks, [source], None, all_fields=True))
    assert len(spread(tasks, 5)) <= 5
    assert spread(tasks[:3], 5) == tasks[:3]

"""What a path names, what is passed over, and that tasks are cut the same way whoever cuts them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.data.sources import SourceFile, cut_tasks, expand
from warpbeam.errors import UserError


def write(root: Path, *names: str, content: str = "{}\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names(path: str, root: Path) -> list[str]:
    return [os.path.relpath(file.uri, root) for file in expand(path, root, None).files]


def test_a_path_that_is_nearly_right_is_offered(tmp_path: Path) -> None:
    write(tmp_path, "d/train.jsonl", "d/other.txt")
    with pytest.raises(UserError) as caught:
        expand("d/trian.jsonl", tmp_path, None)
    assert caught.value.why.endswith("did you mean train.jsonl?")
    with pytest.raises(UserError) as caught:
        expand("nowhere/trian.jsonl", tmp_path, None)
    assert "did you mean" not in caught.value.why


def test_a_folder_means_every_readable_file_below_it(tmp_path: Path) -> None:
    write(
        tmp_path, "d/b.jsonl", "d/a.jsonl.gz", "d/sub/c.parquet", "d/e.TXT", "d/f.ndjson.zst", "d/g.json", "other.jsonl"
    )
    found = ["d/a.jsonl.gz", "d/b.jsonl", "d/e.TXT", "d/f.ndjson.zst", "d/g.json", "d/sub/c.parquet"]
    assert names("d", tmp_path) == names("d/", tmp_path) == names(str(tmp_path / "d"), tmp_path) == found
    assert names(f"file://{tmp_path}/d", tmp_path) == found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("d/*.jsonl", ["d/a.jsonl", "d/b1.jsonl"]),
        ("d/b?.jsonl", ["d/b1.jsonl"]),
        ("d/**/*.jsonl", ["d/a.jsonl", "d/b1.jsonl", "d/x/y/c.jsonl", "d/x/z.jsonl"]),
        ("d/**", ["d/a.jsonl", "d/b1.jsonl", "d/x/y/c.jsonl", "d/x/z.jsonl"]),
        ("d/*/*.jsonl", ["d/x/z.jsonl"]),
        ("d/x*/", ["d/x/y/c.jsonl", "d/x/z.jsonl"]),
        ("d/[ab]*.jsonl", ["d/a.jsonl", "d/b1.jsonl"]),
        ("d/[!a]*.jsonl", ["d/b1.jsonl"]),
        ("d/b[0-9].jsonl", ["d/b1.jsonl"]),
        ("*/a.jsonl", ["d/a.jsonl"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, found: list[str]) -> None:
    write(tmp_path, "d/a.jsonl", "d/b1.jsonl", "d/x/z.jsonl", "d/x/y/c.jsonl")
    assert names(pattern, tmp_path) == found


def test_an_exact_name_goes_before_a_pattern(tmp_path: Path) -> None:
    write(tmp_path, "part[1].jsonl", "part1.jsonl", "_hidden.jsonl")
    assert names("part[1].jsonl", tmp_path) == ["part[1].jsonl"]
    assert names("_hidden.jsonl", tmp_path) == ["_hidden.jsonl"]
    assert names("_*.jsonl", tmp_path) == ["_hidden.jsonl"]


def test_what_is_passed_over_is_counted_and_the_empty_are_named(tmp_path: Path) -> None:
    write(tmp_path, "d/a.jsonl", "d/_SUCCESS", "d/.part.crc", "d/.ipynb_checkpoints/a.jsonl", "d/README.md", "d/x.crc")
    write(tmp_path, "d/part-0003.jsonl", content="")
    found = expand("d", tmp_path, None)
    assert [Path(file.uri).name for file in found.files] == ["a.jsonl"]
    assert found.passed_over == {"hidden": 3, "unreadable_type": 2, "empty": 1}
    assert found.empty == (str(tmp_path / "d/part-0003.jsonl"),)
    assert found.summary() == "1 empty (part-0003.jsonl), 3 hidden, 2 of a type that is not read (.crc, .md)"
    assert expand("d/*.jsonl", tmp_path, None).passed_over == {"empty": 1}


@pytest.mark.parametrize(
    "path", ["missing.jsonl", "missing/", "d/*.parquet", "missing/*.jsonl", "d/empty", "d/e.jsonl"]
)
def test_nothing_to_read_is_an_error_that_names_the_path(tmp_path: Path, path: str) -> None:
    write(tmp_path, "d/a.jsonl")
    write(tmp_path, "d/e.jsonl", "d/empty/b.jsonl", content="")
    with pytest.raises(UserError, match=re.escape(path)) as caught:
        expand(path, tmp_path, None)
    assert "no records" in caught.value.what
    assert caught.value.reason == "no_records"


def test_a_file_of_another_type_is_refused_with_the_readable_ones(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "b.parquet.gz")
    for path in ("a.csv", "b.parquet.gz"):
        with pytest.raises(UserError, match=path) as caught:
            expand(path, tmp_path, None)
        assert ".parquet" in caught.value.why
        assert caught.value.reason == "unreadable_type"


def test_wildcards_in_the_job_files_own_folder_are_names(tmp_path: Path) -> None:
    root = tmp_path / "[proj]*"
    write(root, "d/a.jsonl", "d/b 1.jsonl")
    assert (
        names("d", root) == names("d/*.jsonl", root) == names("./d/../d/*.jsonl", root) == ["d/a.jsonl", "d/b 1.jsonl"]
    )
    assert names(f"file://{tmp_path}/%5Bproj%5D*/d/b%201.jsonl", root) == ["d/b 1.jsonl"]


def test_other_schemes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="https://"):
        expand("https://example.com/a.jsonl", tmp_path, None)


def test_hidden_folders_are_not_entered_unless_they_are_spelt(tmp_path: Path) -> None:
    write(tmp_path, "d/a.jsonl", "d/.venv/x.jsonl", "d/.venv/deep/y.jsonl", "d/_tmp/z.jsonl")
    assert names("d", tmp_path) == names("d/**/*.jsonl", tmp_path) == ["d/a.jsonl"]
    assert expand("d", tmp_path, None).passed_over == {"hidden": 2}
    assert names("d/.venv/*.jsonl", tmp_path) == names("d/.v*/*.jsonl", tmp_path) == ["d/.venv/x.jsonl"]
    assert names("d/_tmp", tmp_path) == ["d/_tmp/z.jsonl"]


def test_linked_folders_are_read_once_and_loops_end(tmp_path: Path) -> None:
    write(tmp_path, "d/a.jsonl", "elsewhere/b.jsonl")
    (tmp_path / "d/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "d/loop").symlink_to(tmp_path / "d")
    (tmp_path / "d/dangling.jsonl").symlink_to(tmp_path / "gone")
    assert names("d", tmp_path) == ["d/a.jsonl", "d/linked/b.jsonl"]


@given(size=st.integers(1, 10**9), task_bytes=st.integers(1, 10**8))
def test_ranges_cover_a_file_and_are_about_as_large_as_asked(size: int, task_bytes: int) -> None:
    size = min(size, 500 * task_bytes)
    tasks = cut_tasks([SourceFile("f.jsonl", size, "", None, "jsonl")], task_bytes)
    assert [task.start for task in tasks] == [0, *(task.end for task in tasks[:-1])]
    assert tasks[-1].end == size
    assert max(task.end - task.start for task in tasks) <= max(1.5 * task_bytes, 2)


def test_packed_files_are_one_task(tmp_path: Path) -> None:
    files = [SourceFile("a.jsonl.gz", 10**9, "", "gz", "jsonl"), SourceFile("b.txt", 10, "", None, "txt")]
    assert [(t.source, t.file.uri, t.start, t.end) for t in cut_tasks(files, source=2)] == [
        (2, "a.jsonl.gz", 0, 10**9),
        (2, "b.txt", 0, 10),
    ]

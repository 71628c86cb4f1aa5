from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.launch.jobs import job
from warpbeam.errors import UserError
from warpbeam.launch import bundle
from warpbeam.launch.bundle import check_data_travels, pack, read_folder


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(root: Path) -> list[str]:
    return [file.name for file in read_folder(root).files]


def test_what_stays_home(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "jobs/job.yaml": "x",
            ".git/objects/big": "x" * 1000,
            ".venv/lib/a.py": "x",
            "env/pyvenv.cfg": "",
            "env/lib/b.py": "",
            "jobs/__pycache__/a.pyc": "x",
            ".gitignore": "data/\n*.log\n!keep.log\n",
            ".rayignore": "notes.md\n",
            "data/huge.jsonl": "x",
            "notes.md": "",
            "a.log": "",
            "keep.log": "",
            "sub/.gitignore": "/local.txt\n!b.log\n",
            "sub/local.txt": "",
            "sub/b.log": "",
            "sub/deep/local.txt": "",
            ".env": "SECRET=1",
        },
    )
    kept = ["jobs/job.yaml", "keep.log", "sub/b.log", "sub/deep/local.txt"]
    assert [name for name in names(tmp_path) if not name.endswith("ignore")] == kept


def test_the_name_is_the_content(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(tmp_path / folder, {"b.py": "print(1)", "a/c.txt": "hi"})
    os.utime(tmp_path / "two/b.py", (1, 1))
    first, second = (pack(read_folder(tmp_path / name), tmp_path / f"{name}.zip") for name in ("one", "two"))
    assert first.name == second.name
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    write(tmp_path / "two", {"b.py": "print(2)"})
    assert pack(read_folder(tmp_path / "two"), tmp_path / "three.zip").name != first.name
    assert zipfile.ZipFile(first.path).read("a/c.txt") == b"hi"


def test_links_that_lead_outside_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "work"
    write(root, {"in/a.txt": "a", "sub/x": ""})
    write(tmp_path, {"secret.txt": "no"})
    (root / "root").symlink_to("/")
    (root / "up").symlink_to(tmp_path / "secret.txt")
    (root / "loop").symlink_to(root)
    (root / "sub/alias").symlink_to(root / "in/a.txt")
    contents = read_folder(root)
    assert [file.name for file in contents.files] == ["in/a.txt", "sub/alias", "sub/x"]
    assert contents.left_out_links == ("loop", "root", "up")
    packed = pack(contents, tmp_path / "w.zip")
    assert zipfile.ZipFile(packed.path).read("sub/alias") == b"a"


def test_too_large_names_the_limit_and_the_culprits(tmp_path: Path) -> None:
    root = tmp_path / "work"
    for number in range(40):
        write(root, {f"data/raw/{number}.bin": os.urandom(500).hex(), "src/a.py": "x = 1"})
    with pytest.raises(UserError) as caught:
        pack(read_folder(root), tmp_path / "w.zip", limit_bytes=10_000)
    assert "data/raw (0.0 MB, 40 files)" in caught.value.why
    assert "src" in caught.value.why
    assert caught.value.exit_code == 2


def test_gigabytes_are_refused_without_reading_them(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    with (root / "weights.bin").open("wb") as file:
        file.truncate(20_000_000_000)
    with pytest.raises(UserError, match=r"20,000\.0 MB in 1 files; the limit is 100\.0 MB"):
        pack(read_folder(root), tmp_path / "w.zip")


def test_the_commands_own_output_stays_home(tmp_path: Path) -> None:
    """`warpbeam submit job.yaml > submit.log`, in the folder that is packed."""
    write(tmp_path, {"job.yaml": "x", "other.log": "kept"})
    probe = "from pathlib import Path; from warpbeam.launch.bundle import read_folder\n"
    probe += "print([file.name for file in read_folder(Path('.')).files])"
    with (tmp_path / "submit.log").open("w") as log:
        subprocess.run([sys.executable, "-c", probe], stdout=log, check=True, cwd=tmp_path)
    assert (tmp_path / "submit.log").read_text() == "['job.yaml', 'other.log']\n"


@pytest.mark.parametrize("change", ["longer", "gone", "same size"])
def test_a_change_while_packing_is_noticed(tmp_path: Path, change: str) -> None:
    root = tmp_path / "work"
    write(root, {"log.txt": "one"})
    contents = read_folder(root)
    if change == "gone":
        (root / "log.txt").unlink()
    else:
        (root / "log.txt").write_text("two" if change == "same size" else "one and two")
        os.utime(root / "log.txt", (5, 5))
    with pytest.raises(UserError, match=r"log\.txt changed while"):
        pack(contents, tmp_path / "w.zip")


def test_local_data_must_travel(tmp_path: Path) -> None:
    line = '{"text": "hello"}\n'
    write(tmp_path, {"w/jobs/data.jsonl": line, "w/big.jsonl": line, "w/.gitignore": "big.jsonl\n", "out.jsonl": line})
    contents = read_folder(tmp_path / "w")

    def check(path: str) -> None:
        data = {"train": [{"path": path}, {"path": "s3://bucket/x.jsonl"}], "seq_len": 64}
        check_data_travels(contents, job(data=data), tmp_path / "w/jobs")

    check("data.jsonl")
    check("*.jsonl")
    for path in ("../big.jsonl", "../../out.jsonl"):
        with pytest.raises(UserError, match="does not travel"):
            check(path)


def test_forty_thousand_small_files_are_listed_quickly(tmp_path: Path) -> None:
    folders = bundle.Contents(
        tmp_path,
        tuple(bundle.PackedFile(f"d{n % 7}/e{n % 70}/{n}", tmp_path, 4096, 0, False) for n in range(40_000)),
        (),
    ).largest_folders()
    assert len(folders) == 5


def test_a_large_file_of_the_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.yaml").write_text("x" * 100)
    (tmp_path / "junk.bin").write_bytes(b"0" * 5000)
    (tmp_path / "small.py").write_text("1")
    assert read_folder(tmp_path).largest_folders() == [("junk.bin", 5000, 1), ("jobs", 100, 1)]

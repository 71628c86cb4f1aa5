"""Folders, bundles and records become facts; what is hostile in them costs nothing and reaches nothing."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warpbeam.doctor.bundle import Limits, bundle_items
from warpbeam.doctor.collect import collect, folder_items
from warpbeam.doctor.diagnose import diagnose
from warpbeam.doctor.from_record import lagging
from warpbeam.doctor.kinds import Kind
from warpbeam.errors import UserError

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
Write = Callable[[tarfile.TarFile], None]


def file(name: str, data: bytes = OOM) -> Write:
    def write(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))

    return write


def special(name: str, kind: bytes, target: str = "") -> Write:
    def write(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)

    return write


def bundle(path: Path, *writes: Write, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for write in writes:
            write(tar)
    return path


def test_a_folder_is_read_with_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "rank-3.log").write_bytes(OOM)
    (tmp_path / "sub" / "core").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "loop").symlink_to(tmp_path)
    left_out: list[str] = []
    read = collect(folder_items(tmp_path, left_out), left_out)
    first = diagnose(read.facts).first
    assert first is not None
    assert (first.kind, first.where, read.files) == (Kind.GPU_OOM_ONE_RANK, "rank 3", 1)
    assert sorted(left_out) == ["loop: a link", "sub/core: not text"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_bundle_says_what_its_folder_would(tmp_path: Path, mode: str) -> None:
    path = bundle(tmp_path / "b.tar", file("logs/rank-3.log"), mode=mode)
    first = diagnose(collect(bundle_items(path, [])).facts).first
    assert first is not None
    assert (first.kind, first.where) == (Kind.GPU_OOM_ONE_RANK, "rank 3")


def test_nothing_of_a_hostile_bundle_is_followed_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    path = bundle(
        tmp_path / "b.tar.gz",
        special("passwd", tarfile.SYMTYPE, "/etc/passwd"),
        special("hard", tarfile.LNKTYPE, "../../etc/passwd"),
        special("pipe", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
        file("../../escaped.log"),
        file("/absolute.log"),
        file("fine.log"),
    )
    left_out: list[str] = []
    read = collect(bundle_items(path, left_out), left_out)
    assert read.files == 1
    assert len(left_out) == 6
    assert list(inside.iterdir()) == []
    assert {entry.name for entry in tmp_path.iterdir()} == {"inside", "b.tar.gz"}


def test_a_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar.gz", file("zeros.log", b"x" * 5_000_000))
    with pytest.raises(UserError, match="too large"):
        collect(bundle_items(path, [], Limits(unpacked=1_000_000)))


def test_too_many_entries_end_at_the_limit(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar.gz", *(file(f"{number}.log") for number in range(30)))
    with pytest.raises(UserError, match="too large"):
        collect(bundle_items(path, [], Limits(members=20)))


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    (tmp_path / "b.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"a" * 4096)
    with pytest.raises(UserError, match="cannot be read as a bundle"):
        collect(bundle_items(tmp_path / "b.tar", []))


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\x1f\x8b\x08 broken"])
def test_what_is_no_tar_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a bundle"):
        collect(bundle_items(tmp_path / "b.tar", []))


def test_control_letters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar", file("\x1b[31mred.log"), mode="w")
    ((name, blocks),) = [(name, list(blocks)) for name, blocks in bundle_items(path, [])]
    assert (name, blocks) == ("?[31mred.log", [OOM])


def test_the_one_rank_whose_heartbeat_lags_is_told() -> None:
    beats = {f"rank-{rank}": {"step": 9 if rank != 2 else 4, "phase": "data"} for rank in range(4)}
    assert lagging(beats) == ["heartbeats: rank 2 stood at step 4, in phase data; others at 9"]
    assert lagging({"rank-0": {"step": 3, "phase": "x"}, "rank-1": {"step": 4, "phase": "x"}}) == []

"""A shard is a plain safetensors file, written in bounded memory, and a full disk is said in words."""

from __future__ import annotations

import errno
import hashlib
import weakref
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from warpbeam.checkpoint.pieces import Box, Piece, Range, whole
from warpbeam.checkpoint.rng import capture_rng, restore_rng
from warpbeam.checkpoint.safetensors_file import read_header
from warpbeam.checkpoint.shard import write_shard
from warpbeam.errors import InfraError, UserError


def test_plain_safetensors_opens_it(tmp_path: Path) -> None:
    pieces = [
        (Piece("a", "weight", (4, 6), Range(3, 11)), torch.randn(8)),
        (Piece("a", "exp_avg", (4, 6), Box((0, 2), (4, 3))), torch.randn(4, 3).t().contiguous().t()),
        (whole("flag", "buffer", (3,)), torch.tensor([True, False, True])),
        (whole("steps", "buffer", ()), torch.tensor([7])),
        (whole("half", "buffer", (5,)), torch.randn(5, dtype=torch.bfloat16)),
    ]
    path = tmp_path / "folder" / "shard.safetensors"
    info = write_shard(pieces, path, {"torch": torch.get_rng_state()})
    loaded = load_file(path)
    assert torch.equal(loaded.pop("rng/torch"), torch.get_rng_state())
    assert list(loaded)
    assert set(loaded) == {str(piece) for piece, _ in pieces}
    assert all(torch.equal(loaded[str(piece)], tensor) for piece, tensor in pieces)
    with safe_open(path, "pt") as file:
        assert file.metadata()["schema"] == "warpbeam/shard/v1"

    data = path.read_bytes()
    assert (info.size, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    for stored, (piece, tensor) in zip(info.pieces, pieces, strict=True):
        raw = data[stored.offset :][: tensor.numel() * tensor.element_size()]
        assert stored.piece == piece
        assert torch.equal(torch.frombuffer(bytearray(raw), dtype=tensor.dtype).view(tensor.shape), tensor)
        assert stored.crc32 == zlib.crc32(raw)
        assert stored.offset % tensor.element_size() == 0
    assert [name for name, _, _ in info.rng] == ["torch"]
    assert set(read_header(path)) == {"rng/torch", *loaded}


class Memory(bytearray):
    """Lives as long as any tensor on it."""


def test_functions_are_called_one_after_another_and_no_two_tensors_live_at_once(tmp_path: Path) -> None:
    made: list[weakref.ref[Memory]] = []

    def produce(number: int) -> torch.Tensor:
        assert [memory for memory in made if memory() is not None] == []
        memory = Memory(40)
        made.append(weakref.ref(memory))
        return torch.frombuffer(memory, dtype=torch.float32).fill_(number)

    pieces = [(whole(str(n), "weight", (10,)), partial(produce, n)) for n in range(5)]
    write_shard(iter(pieces), tmp_path / "s")
    assert len(made) == 5
    assert load_file(tmp_path / "s")["weight/3@0-10"].tolist() == [3.0] * 10


def test_an_empty_shard_is_a_file_too(tmp_path: Path) -> None:
    info = write_shard([], tmp_path / "s")
    assert load_file(tmp_path / "s") == {}
    assert info.pieces == []


def test_a_full_disk_names_the_path_and_leaves_nothing(tmp_path: Path) -> None:
    def produce() -> torch.Tensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InfraError, match="disk full") as caught:
        write_shard([(whole("a", "weight", (3,)), produce)], tmp_path / "shard")
    assert str(tmp_path / "shard") in caught.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tensor", [torch.zeros(7), torch.zeros(2, 4)])
def test_a_tensor_that_does_not_fit_its_piece_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    piece = Piece("a", "weight", (4, 4), Range(0, 8))
    with pytest.raises(ValueError, match="weight/a@0-8"):
        write_shard([(piece, tensor)], tmp_path / "s")
    with pytest.raises(ValueError, match="weight/a@0-8"):
        write_shard([(piece, lambda: tensor)], tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_same_piece_twice_is_refused(tmp_path: Path) -> None:
    pair = (whole("a", "weight", (2,)), torch.zeros(2))
    with pytest.raises(ValueError, match="twice"):
        write_shard([pair, pair], tmp_path / "s")


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 7, b"\xff" * 30, (5).to_bytes(8, "little") + b"[1,2]", b"version https"]
)
def test_what_is_no_safetensors_file_is_said(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UserError, match="not a safetensors file"):
        read_header(tmp_path / "x")


def test_a_cut_off_file_is_said(tmp_path: Path) -> None:
    write_shard([(whole("a", "weight", (100,)), torch.zeros(100))], tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(UserError, match="cut off"):
        read_header(tmp_path / "x")


def test_random_states_come_back_without_pickle() -> None:
    import random

    random.gauss(0, 1)  # leaves a cached second value behind, part of the state
    np.random.standard_normal()
    states = {name: state.clone() for name, state in capture_rng().items()}
    assert all(state.dtype == torch.uint8 for state in states.values())

    def draw() -> list[object]:
        return [random.gauss(0, 1), random.random(), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()]

    expected = draw()
    assert draw() != expected
    restore_rng(states)
    assert draw() == expected

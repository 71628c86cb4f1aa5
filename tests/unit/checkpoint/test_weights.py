"""Base models as pieces: any range or box of any tensor in any stored dtype; pickles are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.unit.checkpoint.ranks import Cut, cut_buckets, cut_dim, cut_flat, local
from warpbeam.checkpoint.pieces import Box, Piece, Range, whole
from warpbeam.checkpoint.weights import HfWeights, fetch_from_store, fetch_model_folder
from warpbeam.errors import InfraError, UserError
from warpbeam.storage.local import LocalStore

TENSORS = {
    "model.embed.weight": torch.randn(11, 6),
    "model.norm.weight": torch.randn(6, dtype=torch.bfloat16),
    "model.half.weight": torch.randn(3, 5, 2, dtype=torch.float16),
    "model.count": torch.arange(7),
    "scale": torch.tensor(2.5),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files and an index."""
    names = list(TENSORS)
    for file, part in (("a.safetensors", names[:2]), ("b.safetensors", names[2:])):
        save_file({name: TENSORS[name] for name in part}, tmp_path / file)
    weight_map = {name: "a.safetensors" if name in names[:2] else "b.safetensors" for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_names_shapes_dtypes(folder: Path) -> None:
    weights = HfWeights(folder)
    assert weights.names() == sorted(TENSORS)
    assert all(weights.shape(name) == tuple(tensor.shape) for name, tensor in TENSORS.items())
    assert all(weights.dtype(name) == tensor.dtype for name, tensor in TENSORS.items())


@pytest.mark.parametrize("cut", [cut_flat, cut_buckets, cut_dim(0), cut_dim(1)])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_reads_its_part_as_float32(folder: Path, cut: Cut, world: int) -> None:
    weights = HfWeights(folder)
    for name, tensor in TENSORS.items():
        expected = tensor.float() if tensor.is_floating_point() else tensor
        for rank in range(world):
            for index in cut(tuple(tensor.shape), rank, world):
                found = weights.read(Piece(name, "weight", tuple(tensor.shape), index))
                assert found.dtype == expected.dtype
                assert torch.equal(found, local(expected, index))


def test_a_read_tensor_is_the_readers_own(folder: Path) -> None:
    before = (folder / "a.safetensors").read_bytes()
    weights = HfWeights(folder)
    piece = whole("model.embed.weight", "weight", (11, 6))
    weights.read(piece).zero_()
    assert torch.equal(weights.read(piece).view(11, 6), TENSORS["model.embed.weight"])
    assert (folder / "a.safetensors").read_bytes() == before


def test_the_base_models_prefix_may_be_there_or_not(folder: Path) -> None:
    with_prefix = HfWeights(folder, base_prefix="model")
    assert with_prefix.find("embed.weight") == "model.embed.weight"
    assert with_prefix.find("model.embed.weight") == "model.embed.weight"
    assert with_prefix.find("model.scale") == "scale"
    assert with_prefix.find("lm_head.weight") is None


def test_other_shapes_and_missing_names_are_said(folder: Path) -> None:
    weights = HfWeights(folder)
    with pytest.raises(UserError, match=r"\[11, 6\] in a.safetensors, the model needs \[6, 11\]"):
        weights.read(Piece("model.embed.weight", "weight", (6, 11), Range(0, 3)))
    with pytest.raises(UserError, match=r"no weights for 'lm_head.weight'"):
        weights.read(Piece("lm_head.weight", "weight", (6, 11), Box((0, 0), (1, 1))))


def test_a_file_that_the_index_names_and_is_missing_is_said(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks b.safetensors"):
        HfWeights(folder)


def test_pickles_are_refused_with_the_reason_and_the_fix(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"only as pytorch_model.bin") as caught:
        HfWeights(tmp_path)
    assert "pickle" in caught.value.why
    assert "save_pretrained" in caught.value.fix


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no weights"):
        HfWeights(tmp_path)


def test_a_local_folder_is_used_where_it_is(folder: Path, tmp_path: Path) -> None:
    assert fetch_model_folder(str(folder), None, tmp_path / "cache") == folder
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    assert fetch_model_folder(spaced.as_uri(), None, tmp_path / "cache") == spaced
    with pytest.raises(UserError, match="no model folder"):
        fetch_model_folder(str(folder / "missing"), None, tmp_path / "cache")


def test_the_hub_offline_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE forbids to fetch it") as caught:  # no second try changes that
        fetch_model_folder("hf://nobody/no-such-model", None, tmp_path)
    assert "unset HF_HUB_OFFLINE" in caught.value.fix
    with pytest.raises(UserError, match="hub has no model"):
        fetch_model_folder("hf://a/b/c", None, tmp_path)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def fetch(bucket: Path, cache_dir: Path) -> Path:
    return fetch_from_store(LocalStore(bucket), "m", "s3://models/m", cache_dir)


def test_a_model_in_a_bucket_is_fetched_once_and_again_when_it_changes(bucket: Path, tmp_path: Path) -> None:
    (bucket / "m").mkdir(parents=True)
    save_file(TENSORS, bucket / "m" / "model.safetensors")
    (bucket / "m" / "config.json").write_text("{}")
    (bucket / "m" / "pytorch_model.bin").write_text("pickle")
    first = fetch(bucket, tmp_path / "cache")
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
    assert HfWeights(first).names() == sorted(TENSORS)
    assert fetch(bucket, tmp_path / "cache") == first
    save_file({"other": torch.zeros(3)}, bucket / "m" / "model.safetensors")
    second = fetch(bucket, tmp_path / "cache")
    assert HfWeights(second).names() == ["other"]
    assert HfWeights(first).names() == sorted(TENSORS)


def test_what_a_bucket_may_lack_is_said(bucket: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model at s3://models/m"):
        fetch(bucket, tmp_path)
    (bucket / "m").mkdir(parents=True)
    (bucket / "m" / "pytorch_model.bin").write_text("pickle")
    with pytest.raises(UserError, match=r"only as pytorch_model.bin"):
        fetch(bucket, tmp_path)
    save_file(TENSORS, bucket / "m" / "model.safetensors")
    (bucket / "m" / "lineage.json").write_text("{}")
    with pytest.raises(UserError, match="unfinished"):
        fetch(bucket, tmp_path)
    (bucket / "m" / "export.json").write_text('{"files": {"model.safetensors": {"sha256": "0"}}}')
    with pytest.raises(InfraError, match="damaged"):
        fetch(bucket, tmp_path)


@pytest.mark.parametrize("cut", [cut_flat, cut_dim(1)])
@pytest.mark.parametrize("kind", ["gpt-neox", "qwen3-moe"])
def test_what_transformers_stores_otherwise_is_read_by_its_name_in_memory(tmp_path: Path, kind: str, cut: Cut) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = (
        transformers.GPTNeoXConfig(**sizes, num_attention_heads=2)
        if kind == "gpt-neox"
        else transformers.Qwen3MoeConfig(
            **sizes, num_attention_heads=2, num_key_value_heads=1, num_experts=3, moe_intermediate_size=8
        )
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    weights = HfWeights(tmp_path, base_prefix=model.base_model_prefix)
    missing = [name for name, _ in model.named_parameters() if name not in weights.names()]
    assert missing, "this model no longer tests anything"
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        assert weights.has(name)
        for rank in range(3):
            for index in cut(shape, rank, 3):
                assert torch.equal(weights.read(Piece(name, "weight", shape, index)), local(parameter.data, index))
    assert not weights.has("model.nothing")


def test_files_that_are_not_aligned_are_read_too(tmp_path: Path) -> None:
    save_file({"w": TENSORS["model.embed.weight"]}, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(
        (length + 3).to_bytes(8, "little") + data[8 : 8 + length] + b"   " + data[8 + length :]
    )
    found = HfWeights(tmp_path).read(whole("w", "weight", (11, 6)))
    assert torch.equal(found.view(11, 6), TENSORS["model.embed.weight"])


def test_other_weights_beside_the_models_are_not_mixed_in(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3)}, tmp_path / "model.safetensors")
    save_file({"lora": torch.zeros(3)}, tmp_path / "adapter_model.safetensors")
    assert HfWeights(tmp_path).names() == ["w"]

"""Plain transformers loads what we export, bit for bit and logit for logit; versions are immutable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.ranks import Cut, Tensors, cut_buckets, cut_dim, cut_flat, pieces_of, run_ranks
from tests.unit.checkpoint.runs import save_checkpoint, spoil
from warpbeam.checkpoint.export import export_model
from warpbeam.checkpoint.log import Claim, RunLog
from warpbeam.checkpoint.manifest import CheckpointBroken
from warpbeam.checkpoint.save import TrainState
from warpbeam.data.tokenizer import end_of_turn_id, save_tokenizer, train_tokenizer
from warpbeam.errors import InfraError, UserError
from warpbeam.storage import layout

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "qwen2-tied": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-untied": transformers.Qwen2Config(**SIZES, tie_word_embeddings=False),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-untied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0),
    "gpt-neox": transformers.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
    "qwen3-moe": transformers.Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}


def build(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def state_of(model: Any) -> Tensors:
    """As a strategy gives it: parameters once each, persistent buffers, optimizer states beside."""
    tensors: Tensors = {("weight", name): tensor.data for name, tensor in model.named_parameters()}
    tensors |= {
        ("exp_avg", name): torch.zeros_like(tensor) for _, name in list(tensors) for tensor in [tensors["weight", name]]
    }
    persistent = set(model.state_dict())
    return tensors | {("buffer", name): buffer for name, buffer in model.named_buffers() if name in persistent}


def run_with(
    store: MemoryStore,
    tmp: Path,
    model: Any,
    *,
    step: int = 5,
    cut: Cut = cut_flat,
    claim: Claim | None = None,
    state: dict[str, Any] | None = None,
    precision: str = "fp32",
) -> Claim:
    """A run that has saved the model at world 3, with its model files."""
    claim = claim or RunLog(store, "team", "run").claim("a1")
    folder = tmp / "model"
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    for path in folder.iterdir():
        store.put(f"{layout.run_model_prefix('team', 'run')}/{path.name}", path.read_bytes())
    results = run_ranks(
        3,
        lambda rank, gather, broadcast: save_checkpoint(
            store,
            claim,
            step=step,
            rank=rank,
            pieces=pieces_of(state_of(model), cut, rank, 3),
            state=TrainState(
                state or {},
                data_fingerprint="data",
                job_digest="job",
                plan={"precision": precision},
                versions={"torch": "2"},
            ),
            gather=gather,
            broadcast=broadcast,
            tmp=tmp,
        ),
    )
    assert not [result for result in results if isinstance(result, Exception)], results
    return claim


def downloaded(store: MemoryStore, prefix: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for key, data in store.objects.items():
        if key.startswith(prefix + "/"):
            (folder / key.rpartition("/")[2]).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("name", "cut"),
    [*((name, cut_flat) for name in CONFIGS), ("qwen2-tied", cut_dim(1)), ("qwen3-moe", cut_dim(1))],
)
def test_transformers_loads_it_bit_for_bit(tmp_path: Path, name: str, cut: Cut) -> None:
    store, model = MemoryStore(), build(CONFIGS[name])
    run_with(store, tmp_path, model, cut=cut)
    exported = export_model(store, "team", "run", tmp=tmp_path)
    assert (exported.name, exported.version, exported.step, exported.warnings) == ("run", "1", 5, [])
    folder = downloaded(store, exported.prefix, tmp_path / "out")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[key], theirs[key]) and ours[key].dtype == theirs[key].dtype for key in ours)
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded.eval()(ids).logits)
    # the very tensors that save_pretrained writes: nothing tied twice, nothing under another name
    model.save_pretrained(tmp_path / "theirs")
    written, expected = load_file(folder / "model.safetensors"), load_file(tmp_path / "theirs" / "model.safetensors")
    assert set(written) == set(expected)
    assert all(torch.equal(written[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3-moe"])
def test_several_files_with_an_index(tmp_path: Path, name: str) -> None:
    store, model = MemoryStore(), build(CONFIGS[name])
    run_with(store, tmp_path, model, cut=cut_buckets)
    files: list[tuple[str, int, int]] = []
    exported = export_model(
        store, "team", "run", tmp=tmp_path, max_file_bytes=20_000, on_file=lambda *args: files.append(args)
    )
    folder = downloaded(store, exported.prefix, tmp_path / "out")
    weights = sorted(folder.glob("*.safetensors"))
    assert len(weights) > 2
    assert [file for file, _, _ in files] == [path.name for path in weights]
    assert all(path.stat().st_size < 22_000 for path in weights if len(load_file(path)) > 1)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        tensor.numel() * 4 for path in weights for tensor in load_file(path).values()
    )
    assert exported.size == sum((folder / file).stat().st_size for file in exported.files)


def test_bf16_is_the_masters_rounded_as_the_engine_rounds(tmp_path: Path) -> None:
    store, model = MemoryStore(), build(CONFIGS["qwen2-tied"])
    run_with(store, tmp_path, model, precision="bf16")
    exported = export_model(store, "team", "run", tmp=tmp_path)
    folder = downloaded(store, exported.prefix, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    expected = model.to(torch.bfloat16).state_dict()
    assert all(torch.equal(expected[key], tensor) for key, tensor in loaded.state_dict().items())
    as_fp32 = export_model(store, "team", "run", tmp=tmp_path, precision="fp32")
    assert as_fp32.version == "2"
    assert (
        load_file(downloaded(store, as_fp32.prefix, tmp_path / "2") / "model.safetensors")["model.norm.weight"].dtype
        == torch.float32
    )


def test_persistent_buffers_are_exported(tmp_path: Path) -> None:
    store = MemoryStore()
    module = torch.nn.BatchNorm1d(4)
    tensors: Tensors = {("weight", name): tensor.data for name, tensor in module.named_parameters()}
    tensors |= {("buffer", name): buffer for name, buffer in module.named_buffers()}
    save_checkpoint(
        store,
        RunLog(store, "team", "run").claim("a1"),
        step=1,
        rank=0,
        pieces=pieces_of(tensors, cut_flat, 0, 1),
        state=TrainState(),
        tmp=tmp_path,
    )
    exported = export_model(store, "team", "run", tmp=tmp_path)
    assert "no config.json" in exported.warnings[0]
    folder = downloaded(store, exported.prefix, tmp_path / "out")
    module2 = torch.nn.BatchNorm1d(4)
    module2.load_state_dict(load_file(folder / "model.safetensors"))
    assert module2.num_batches_tracked.dtype == torch.int64


def test_tokenizer_template_and_stops_travel(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["some text to learn from, with words"] * 20, vocab_size=300)
    config = transformers.Qwen2Config(**{**SIZES, "vocab_size": 300})
    store, model = MemoryStore(), build(config)
    model.generation_config.eos_token_id = 7  # the base model's own end, not the template's
    save_tokenizer(tokenizer, tmp_path / "model")
    run_with(store, tmp_path, model)
    exported = export_model(store, "team", "run", tmp=tmp_path)
    folder = downloaded(store, exported.prefix, tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(folder)
    conversation = [{"role": "user", "content": "Hi, 日本"}, {"role": "assistant", "content": "Hello"}]
    ids = tokenizer.apply_chat_template(conversation, return_dict=False)
    assert again.apply_chat_template(conversation, return_dict=False) == ids
    generation = transformers.GenerationConfig.from_pretrained(folder)
    assert generation.eos_token_id == [7, end_of_turn_id(tokenizer)]
    assert generation.pad_token_id == tokenizer.pad_token_id
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


def test_lineage_says_where_it_comes_from_and_the_seal_comes_last(tmp_path: Path) -> None:
    store = MemoryStore()
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]), state={"eval_loss": 1.5})
    store.calls.clear()
    exported = export_model(store, "team", "run", name="shop", version="v1.2", tmp=tmp_path)
    writes = [key for operation, key in store.calls if operation in ("put", "put_if_absent", "upload")]
    assert exported.prefix == "teams/team/models/shop/v1.2"
    assert (writes[0], writes[-1]) == (f"{exported.prefix}/lineage.json", f"{exported.prefix}/export.json")
    lineage = json.loads(store.objects[f"{exported.prefix}/lineage.json"])
    commit = RunLog(store, "team", "run").newest_commit()
    assert commit is not None
    assert {key: lineage[key] for key in ("run", "attempt", "step", "eval_loss", "data_fingerprint", "job_digest")} == {
        "run": "run",
        "attempt": "a1",
        "step": 5,
        "eval_loss": 1.5,
        "data_fingerprint": "data",
        "job_digest": "job",
    }
    assert lineage["manifest_sha256"] == commit.sha256
    assert lineage["versions"] == {"torch": "2"}


def test_best_last_and_step(tmp_path: Path) -> None:
    store = MemoryStore()
    claim = None
    for step, loss in ((2, 3.0), (4, 1.0), (6, 1.0), (8, 2.0)):
        claim = run_with(
            store, tmp_path, build(CONFIGS["qwen2-tied"], seed=step), step=step, claim=claim, state={"eval_loss": loss}
        )
    assert [export_model(store, "team", "run", which).step for which in ("best", "last", 6, "2")] == [4, 8, 6, 2]
    with pytest.raises(UserError, match="no checkpoint of step 3"):
        export_model(store, "team", "run", 3)
    with pytest.raises(UserError, match="'newest' is unknown"):
        export_model(store, "team", "run", "newest")


def test_best_without_evaluation_is_explained(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(UserError, match="no checkpoint"):
        export_model(store, "team", "run", "best")
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]))
    with pytest.raises(UserError, match="no best checkpoint"):
        export_model(store, "team", "run", "best")


def test_versions_count_up_are_immutable_and_equal_exports_are_one(tmp_path: Path) -> None:
    store = MemoryStore()
    claim = run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]))
    first = export_model(store, "team", "run", tmp=tmp_path)
    before = dict(store.objects)
    assert export_model(store, "team", "run", tmp=tmp_path) == first
    assert store.objects == before
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"], seed=1), step=6, claim=claim)
    assert export_model(store, "team", "run", tmp=tmp_path).version == "2"
    with pytest.raises(UserError, match="version '2' of model 'run' exists"):
        export_model(store, "team", "run", version="2", tmp=tmp_path)
    assert all(store.objects[key] == before[key] for key in before if "/index/" not in key)


def test_a_broken_export_leaves_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]))

    def full(operation: str, key: str) -> None:
        if key.endswith(".safetensors"):
            raise InfraError("disk full", reason="disk_full")

    store.before = full
    with pytest.raises(InfraError, match="disk full"):
        export_model(store, "team", "run", tmp=tmp_path)
    store.before = lambda operation, key: None
    assert [key for key in store.objects if "/models/" in key] == []
    assert export_model(store, "team", "run", tmp=tmp_path).version == "1"


def test_an_unfinished_version_is_passed_over(tmp_path: Path) -> None:
    store = MemoryStore()
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]))

    def crash(operation: str, key: str) -> None:
        if key.endswith("export.json"):
            raise KeyboardInterrupt
        if operation == "delete":  # a process that is gone tidies nothing
            raise InfraError("gone")

    store.before = crash
    with pytest.raises(KeyboardInterrupt):
        export_model(store, "team", "run", tmp=tmp_path)
    store.before = lambda operation, key: None
    assert export_model(store, "team", "run", tmp=tmp_path).version == "2"


def test_a_damaged_checkpoint_is_never_exported(tmp_path: Path) -> None:
    store = MemoryStore()
    run_with(store, tmp_path, build(CONFIGS["qwen2-tied"]))
    (key,) = [key for key in store.objects if key.endswith("rank-00001.safetensors")]
    header = 8 + int.from_bytes(store.objects[key][:8], "little")
    data = bytearray(store.objects[key])
    data[header + 5] ^= 1
    store.objects[key] = bytes(data)
    with pytest.raises(CheckpointBroken, match="rank-00001"):
        export_model(store, "team", "run", tmp=tmp_path)
    assert not any(key.endswith("export.json") for key in store.objects)
    spoil(store, key, None)
    with pytest.raises(CheckpointBroken, match="rank-00001"):
        export_model(store, "team", "run", tmp=tmp_path)

"""Packed examples never see each other: every kernel, every family, and refusal by name where it cannot be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from warpbeam.errors import UserError
from warpbeam.train import attention, kernels
from warpbeam.train.forward import Forward

CPU = torch.device("cpu")
VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 16},
    "mistral": GROUPED | {"sliding_window": 5},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    | {"bos_token_id": None, "eos_token_id": None},
    "gpt_neox": SHAPE,
    "gemma2": GROUPED | {"head_dim": 16},  # a soft cap: keeps its own attention and the block mask
}
LENGTHS = [5, 11, 9, 7]  # two rows of 16


def model_of(family: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=torch.float32)
    for parameter in model.parameters():  # fresh models attend almost evenly: make differences large enough to see
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_rows_equal_each_example_alone(family: str) -> None:
    model = model_of(family, FAMILIES[family])
    own = model.config._attn_implementation
    ids = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(1))
    packing = attention.choose(model, CPU, "fp32")
    packing, leak = attention.prove(model, model, packing, VOCABULARY, CPU)
    positions = torch.cat([torch.arange(n) for n in LENGTHS]).view(2, 16)
    inputs = {"position_ids": positions, "use_cache": False, **packing.inputs(LENGTHS, 16, CPU)}
    packed = model(input_ids=ids, **inputs).logits.flatten(0, 1)
    model.set_attn_implementation(own)
    alone = [model(input_ids=part[None], use_cache=False).logits[0] for part in ids.flatten().split(LENGTHS)]
    assert leak == 0.0
    assert (packed - torch.cat(alone)).abs().max() < 2e-6
    assert packing.kernel == ("block-mask" if family == "gemma2" else "sdpa-per-example")


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
        ("mamba", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}),
        ("bert", SHAPE | {"num_hidden_layers": 1}),  # sees what follows
    ],
)
@torch.no_grad()
def test_a_family_that_leaks_is_refused_by_name(family: str, settings: dict[str, Any]) -> None:
    model = model_of(family, settings)
    packing, leak = attention.prove(model, model, attention.choose(model, CPU, "fp32"), VOCABULARY, CPU)
    with pytest.raises(UserError, match=f"{family} models cannot be trained on packed rows") as raised:
        attention.refuse_leak(model, packing, leak)
    assert "packing: false" in raised.value.fix


@torch.no_grad()
def test_the_cache_leaks_and_the_test_would_see_it() -> None:
    """transformers' block mask needs use_cache=False; with the cache left on, the same call leaks without a word."""
    model = model_of("qwen2", GROUPED)

    class Cached(Forward):
        def __call__(self, module: torch.nn.Module, inputs: dict[str, Any], **more: Any) -> Any:
            return super().__call__(module, {**inputs, "use_cache": True}, **more)

    own = attention.Packing("block-mask", "test")
    assert attention.leak(Forward(model), model, own, VOCABULARY, CPU) == 0.0
    assert attention.leak(Cached(model), model, own, VOCABULARY, CPU) > 1e-3


@torch.no_grad()
def test_a_model_that_ignores_positions_is_caught() -> None:
    class Sum(torch.nn.Module):
        """Every position sees all before it, whatever the example."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, 8)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.embedding(input_ids).cumsum(1) @ self.embedding.weight.T

    model = Sum()
    packing, leak = attention.prove(model, model, attention.choose(model, CPU, "fp32"), VOCABULARY, CPU)
    with pytest.raises(UserError, match="Sum models cannot be trained on packed rows"):
        attention.refuse_leak(model, packing, leak)


def test_kernel_gradients_equal_those_of_a_dense_mask() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, heads, 16, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2))
    segments = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS)).view(2, 16)
    mask = (segments[:, None, :, None] == segments[:, None, None, :]) & torch.ones(16, 16, dtype=torch.bool).tril()
    ours, _ = kernels.per_example_attention(None, query, key, value, example_lengths=LENGTHS)
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    assert torch.allclose(ours, dense.transpose(1, 2), atol=1e-6)
    weight = torch.randn(ours.shape, generator=generator)
    mine = torch.autograd.grad((ours * weight).sum(), (query, key, value))
    theirs = torch.autograd.grad((dense.transpose(1, 2) * weight).sum(), (query, key, value))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, theirs, strict=True))


def test_a_kernel_refuses_what_it_would_ignore() -> None:
    tensors = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    kernel = kernels.Varlen(torch.add, frozenset())
    with pytest.raises(kernels.Unsupported, match="softcap"):
        kernels.per_example_attention(None, *tensors, example_lengths=[4], softcap=30.0)
    with pytest.raises(kernels.Unsupported, match="mask"):
        kernels.per_example_attention(None, *tensors, torch.ones(1, 1, 4, 4, dtype=torch.bool), example_lengths=[4])
    with pytest.raises(kernels.Unsupported, match="was not told where the examples of a row begin"):
        kernels.per_example_attention(None, *tensors)
    with pytest.raises(kernels.Unsupported, match="dropout"):
        kernels.varlen_attention(None, *tensors, kernel=kernel, cu_seq_lens_q=torch.tensor([0, 4]), dropout=0.1)


def test_reasons_name_the_obstacle() -> None:
    config = SimpleNamespace(num_attention_heads=2, hidden_size=32)
    obstacle = attention._varlen_obstacle
    assert "cpu" in (obstacle(config, CPU, "bf16") or "")
    cuda = torch.device("cuda")
    assert "fp32" in (obstacle(config, cuda, "fp32") or "")
    assert "head size 512" in (obstacle(SimpleNamespace(num_attention_heads=2, head_dim=512), cuda, "bf16") or "")
    dropout = SimpleNamespace(num_attention_heads=2, hidden_size=32, attention_dropout=0.1)
    assert "dropout" in (obstacle(dropout, cuda, "bf16") or "")


def test_varlen_gets_the_options_of_the_installed_torch() -> None:
    """One call of ours, three signatures of torch's."""
    for parameters, window, expected in (
        ({"window_size", "enable_gqa"}, None, {"window_size": (-1, 0), "enable_gqa": True}),
        ({"window_size"}, 5, {"window_size": (4, 0)}),
        ({"is_causal"}, None, {"is_causal": True}),
    ):
        kernel = kernels.Varlen(torch.add, frozenset(parameters))
        assert kernel.options(window, grouped=True) == expected
    with pytest.raises(kernels.Unsupported, match="sliding window"):
        kernels.Varlen(torch.add, frozenset({"is_causal"})).options(5, grouped=False)
    assert {"window_size", "scale", "enable_gqa"} <= kernels.Varlen.installed().takes


def test_varlen_is_called_with_all_examples_in_one_row() -> None:
    """The kernel itself runs on CUDA only; a plain function in its place shows what it gets."""
    seen: dict[str, Any] = {}

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        seen.update(options, shapes=[tuple(t.shape) for t in (q, k, v)], ends=arguments[0].tolist())
        own = [tensor.view(2, 16, -1, 8).transpose(1, 2) for tensor in (q, k, v)]
        return kernels.per_example_attention(None, *own, example_lengths=LENGTHS)[0].flatten(0, 1)

    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(2, heads, 16, 8, generator=generator) for heads in (4, 2, 2)]
    inputs = attention.Packing("varlen", "test").inputs(LENGTHS, 16, CPU)
    kernel = kernels.Varlen(plain, frozenset({"window_size", "enable_gqa"}))
    ours, _ = kernels.varlen_attention(None, *tensors, kernel=kernel, scaling=0.5, **inputs)
    wanted, _ = kernels.per_example_attention(None, *tensors, example_lengths=LENGTHS)
    assert torch.allclose(ours.float(), wanted, atol=0.05)
    assert seen["shapes"] == [(32, 4, 8), (32, 2, 8), (32, 2, 8)]
    assert seen["ends"][:5] == [0, 5, 16, 25, 32]
    assert (seen["window_size"], seen["enable_gqa"], seen["scale"]) == ((-1, 0), True, 0.5)


def test_inputs_of_varlen_have_few_shapes() -> None:
    packing = attention.Packing("varlen", "test")
    inputs = packing.inputs([5, 11, 16], 16, CPU)
    ends = inputs["cu_seq_lens_q"]
    assert ends[:4].tolist() == [0, 5, 16, 32]
    assert set(ends[4:].tolist()) == {32}
    assert len(ends) == 65
    assert len(packing.inputs([4] * 8, 16, CPU)["cu_seq_lens_q"]) == 65


@torch.library.custom_op("warpbeam_test::varlen", mutates_args={})
def _stand_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, scale: float) -> torch.Tensor:
    return q * scale


@_stand_in.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(q)


def test_compiled_layers_share_one_graph_whatever_the_examples() -> None:
    """On a GPU each decoder layer may be compiled: another packing of a row must not compile it anew."""
    from functools import partial

    from torch._dynamo.utils import counters
    from transformers import AttentionInterface
    from transformers.modeling_layers import GradientCheckpointingLayer

    def call(q: Any, k: Any, v: Any, ends: Any, *_: Any, scale: float, **options: Any) -> torch.Tensor:
        return _stand_in(q, k, v, ends, scale)

    kernel = kernels.Varlen(call, frozenset({"window_size", "enable_gqa"}))
    AttentionInterface.register("warpbeam-test", partial(kernels.varlen_attention, kernel=kernel))
    model = model_of("qwen2", GROUPED | {"num_hidden_layers": 4})
    model.set_attn_implementation("warpbeam-test")
    torch._dynamo.reset()
    counters.clear()
    for layer in (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)):
        layer.compile(backend="eager")
    packing, ids = attention.Packing("varlen", "test"), torch.arange(32).view(2, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for lengths in ([5, 11, 9, 7], [1, 15, 16], [4] * 8):
            positions = torch.cat([torch.arange(n) for n in lengths]).view(2, 16)
            model(input_ids=ids, position_ids=positions, use_cache=False, **packing.inputs(lengths, 16, CPU))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]

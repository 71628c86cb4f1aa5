"""A model's shape from what a published row says of it, where there is no config.json to read.

In this order: the row's own sizes; the published config of a model that the row only names (what `hf://` would have
given); a usual width and depth for a number of parameters. `parameters` follows the row's params_B where it has one.
Only inputs are filled in here: nothing measured is keyed on a name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from warpbeam.plan.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What defines a decoder; 0 and None: not known. Parameters in 1e9; `ffn` is one expert's in a mixture."""

    hidden: int
    layers: int
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 0
    head_dim: int = 0
    gated: bool | None = None
    tied: bool | None = None
    experts: int = 1
    experts_per_token: int = 1
    parameters: float = 0.0
    active: float = 0.0
    layers_per_block: int = 1


def _hybrid(sizes: Sizes) -> Sizes:
    """A model whose layers are either a mixer or an MLP (Nemotron 3): two of them are one block of a transformer."""
    return replace(sizes, layers_per_block=2, gated=False)


def _moe(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, *rest: float) -> Sizes:
    experts, per_token, total, active = rest
    return Sizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        gated=True,
        tied=False,
        experts=int(experts),
        experts_per_token=int(per_token),
        parameters=total,
        active=active,
    )


def _dense(
    hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, *, gated: bool = True, tied: bool = False
) -> Sizes:
    return Sizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        gated=gated,
        tied=tied,
    )


# Pattern of a plain name -> the config.json (or model card) of that model. First match wins.
PUBLISHED: Final[tuple[tuple[str, Sizes], ...]] = (
    (r"qwen25?vl?72b|qwen272b|qwen2vl72b", _dense(8192, 80, 64, 8, 29568, 152064)),
    (r"qwen2532b", _dense(5120, 64, 40, 8, 27648, 152064)),
    (r"qwen2514b", _dense(5120, 48, 40, 8, 13824, 152064)),
    (r"qwen253b", _dense(2048, 36, 16, 2, 11008, 151936, tied=True)),
    (r"qwen257b|qwen27b", _dense(3584, 28, 28, 4, 18944, 152064)),
    (r"qwen2505b", _dense(896, 24, 14, 2, 4864, 151936, tied=True)),
    (r"qwen3235ba22b", _moe(4096, 94, 64, 4, 1536, 151936, 128, 8, 235.1, 22.2)),
    (r"qwen330ba3b", _moe(2048, 48, 32, 4, 768, 151936, 128, 8, 30.5, 3.35)),
    (r"qwen332b", _dense(5120, 64, 64, 8, 25600, 151936)),
    (r"qwen314b", _dense(5120, 40, 40, 8, 17408, 151936)),
    (r"qwen38b", _dense(4096, 36, 32, 8, 12288, 151936)),
    (r"qwen18b", _dense(2048, 24, 16, 16, 5504, 151936)),
    (r"qwen7b", _dense(4096, 32, 32, 32, 11008, 151936)),
    (r"qwen14b", _dense(5120, 40, 40, 40, 13696, 152064)),
    (r"qwen72b", _dense(8192, 80, 64, 64, 24576, 152064)),
    (r"llama323b", _dense(3072, 28, 24, 8, 8192, 128256, tied=True)),
    (r"llama321b", _dense(2048, 16, 32, 8, 8192, 128256, tied=True)),
    (r"llama31?8b", _dense(4096, 32, 32, 8, 14336, 128256)),
    (r"llama31?70b", _dense(8192, 80, 64, 8, 28672, 128256)),
    (r"llama31?405b", _dense(16384, 126, 128, 8, 53248, 128256)),
    (r"llama4scout", _moe(5120, 48, 40, 8, 8192, 202048, 16, 1, 108.6, 17.2)),
    (r"(llama2?|vicuna|alpaca)7b", _dense(4096, 32, 32, 32, 11008, 32000)),
    (r"(llama2?|vicuna)13b", _dense(5120, 40, 40, 40, 13824, 32000)),
    (r"llama(30|33)b", _dense(6656, 60, 52, 52, 17920, 32000)),
    (r"llama65b", _dense(8192, 80, 64, 64, 22016, 32000)),
    (r"llama270b|^70b", _dense(8192, 80, 64, 8, 28672, 32000)),
    (r"mistral7b", _dense(4096, 32, 32, 8, 14336, 32000)),
    (r"mixtral8x7b", _moe(4096, 32, 32, 8, 14336, 32000, 8, 2, 46.7, 12.9)),
    (r"mixtral8x22b", _moe(6144, 56, 48, 8, 16384, 32768, 8, 2, 140.6, 39.1)),
    (r"deepseekv3", _moe(7168, 61, 128, 128, 2048, 129280, 256, 9, 671.0, 37.5)),
    (r"deepseekv2236b|deepseekv2(?!lite)", _moe(5120, 60, 128, 128, 1536, 102400, 160, 8, 235.7, 21.4)),
    (r"deepseekv2lite", _moe(2048, 27, 16, 16, 1408, 102400, 64, 8, 15.7, 2.7)),
    (r"deepseekcoder33b", _dense(7168, 62, 56, 8, 19200, 32256)),
    (r"kimik2", _moe(7168, 61, 64, 64, 2048, 163840, 384, 9, 1026.0, 32.9)),
    (r"moonlight16b", _moe(2048, 27, 16, 16, 1408, 163840, 64, 8, 15.96, 2.9)),
    (r"gptoss20b", _moe(2880, 24, 64, 8, 2880, 201088, 32, 4, 20.9, 4.2)),
    (r"gptoss120b", _moe(2880, 36, 64, 8, 2880, 201088, 128, 4, 116.8, 5.7)),
    (r"nemotron(v3|3)nano|nemotron35?lightning", _hybrid(_moe(2688, 52, 32, 2, 1856, 131072, 128, 6, 31.6, 3.6))),
    (r"nemotron(v3|3)super", _hybrid(_moe(4096, 88, 32, 2, 2688, 131072, 512, 22, 120.6, 12.7))),
    (r"nemotron(v3|3)ultra", _hybrid(_moe(8192, 108, 64, 2, 5376, 131072, 512, 22, 550.0, 55.0))),
    (r"nemotron4?15b", _dense(6144, 32, 48, 8, 24576, 256000, gated=False)),
    (r"nemotron4?340b", _dense(18432, 96, 96, 8, 73728, 256000, gated=False)),
    (r"gpt2large|gpt2774m", _dense(1280, 36, 20, 20, 5120, 50257, gated=False, tied=True)),
    (r"gpt2xl", _dense(1600, 48, 25, 25, 6400, 50257, gated=False, tied=True)),
    (r"gptj6b", _dense(4096, 28, 16, 16, 16384, 50400, gated=False)),
    (r"gptneox20b", _dense(6144, 44, 64, 64, 24576, 50432, gated=False)),
    (r"bloomz?7b1", _dense(4096, 30, 32, 32, 16384, 250880, gated=False, tied=True)),
    (r"bertlarge", _dense(1024, 24, 16, 16, 4096, 30522, gated=False, tied=True)),
    (r"baichuan7b", _dense(4096, 32, 32, 32, 11008, 64000)),
    (r"baichuan13b", _dense(5120, 40, 40, 40, 13696, 64000)),
    (r"internlm7b", _dense(4096, 32, 32, 32, 11008, 103168)),
    (r"internlm20b", _dense(5120, 60, 40, 40, 13824, 103168)),
    (r"llada8b", _dense(4096, 32, 32, 32, 12288, 126464)),
    (r"stablelm216b", _dense(2048, 24, 32, 32, 5632, 100352)),
    (r"stablelmalpha3b", _dense(4096, 16, 32, 32, 16384, 50432, gated=False)),
    (r"stablelmalpha7b", _dense(6144, 16, 48, 48, 24576, 50432, gated=False)),
    (r"falcon7b", _dense(4544, 32, 71, 1, 18176, 65024, gated=False, tied=True)),
    (r"falcon40b", _dense(8192, 60, 128, 8, 32768, 65024, gated=False, tied=True)),
    (r"phi15", _dense(2048, 24, 32, 32, 8192, 51200, gated=False)),
)

# Width and depth usual for a number of parameters (1e9): GPT-3's table 2.1, Llama's tables, Megatron's weak scaling.
LADDER: Final[tuple[tuple[float, int, int], ...]] = (
    *((0.125, 768, 12), (0.35, 1024, 24), (0.77, 1280, 36), (1.3, 2048, 24), (2.7, 2560, 32), (6.7, 4096, 32)),
    *((13.0, 5120, 40), (22.0, 6144, 48), (33.0, 6656, 60), (39.0, 8192, 48), (52.0, 8192, 64), (68.0, 8192, 80)),
    *((76.0, 10240, 60), (104.0, 11600, 64), (130.0, 10240, 96), (175.0, 12288, 96), (256.0, 16384, 80)),
    *((405.0, 16384, 126), (530.0, 20480, 105), (1000.0, 25600, 128)),
)
DEFAULT_VOCAB: Final = 50_257
HEAD_DIM: Final = 128


def plain_name(model: str) -> str:
    """Lower case, letters and digits only: Llama-3.1-8B -> llama318b."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def published_sizes(model: str) -> Sizes | None:
    """The published config of a named model; None where none is known."""
    name = plain_name(model)
    return next((sizes for pattern, sizes in PUBLISHED if re.search(pattern, name)), None)


def usual_sizes(billions: float) -> Sizes:
    """Width and depth of the nearest rung of the ladder."""
    _, hidden, layers = min(LADDER, key=lambda rung: abs(math.log(rung[0] / billions)))
    return Sizes(hidden=hidden, layers=layers)


def row_shape(row: Mapping[str, str], notes: Mapping[str, str]) -> ModelShape | None:
    """The shape of a row's model; None where neither sizes, nor parameters, nor a known name are given."""
    named = published_sizes(row["model"])
    billions = float(row["params_B"]) if row["params_B"] else 0.0
    if row["hidden"] and row["layers"]:
        stated = Sizes(hidden=int(row["hidden"]), layers=int(row["layers"]))
        base = named if named and (named.hidden, named.layers) == (stated.hidden, stated.layers) else stated
    elif named is not None:
        base = named
    elif billions:
        base = usual_sizes(billions)
    else:
        return None
    experts = _number(notes.get("experts")) or base.experts
    return build_shape(
        Sizes(
            hidden=base.hidden,
            layers=base.layers,
            heads=int(row["heads"] or 0) or base.heads,
            kv_heads=int(row["kv_heads"] or 0) or base.kv_heads,
            ffn=_number(notes.get("moe_ffn")) or int(row["ffn"] or 0) or base.ffn,
            vocab=int(row["vocab"] or 0) or base.vocab,
            gated={"1": True, "0": False}.get(notes.get("swiglu", ""), base.gated),
            tied={"1": False, "0": True}.get(notes.get("untied", ""), base.tied),
            experts=experts,
            experts_per_token=_number(notes.get("topk")) or base.experts_per_token,
            # A name's params_B is rounded ("7"): the published sizes count more exactly.
            parameters=base.parameters or (0.0 if named and base is named else billions),
            active=base.active,
            layers_per_block=base.layers_per_block,
        )
    )


def build_shape(sizes: Sizes) -> ModelShape:
    """Fill in the usual choices and count; a stated number of parameters decides what was left open and then wins."""
    hidden, layers = sizes.hidden, sizes.layers // sizes.layers_per_block
    heads = sizes.heads or max(1, hidden // HEAD_DIM)
    kv_heads = sizes.kv_heads or heads
    head_dim = sizes.head_dim or (HEAD_DIM if sizes.experts > 1 else max(1, hidden // heads))
    vocab = sizes.vocab or DEFAULT_VOCAB
    gated_choices = (sizes.gated,) if sizes.gated is not None else (sizes.ffn not in (0, 4 * hidden),)
    if sizes.gated is None and sizes.parameters and sizes.ffn:
        gated_choices = (True, False)
    tied_choices = (sizes.tied,) if sizes.tied is not None else ((True, False) if sizes.parameters else (False,))
    wanted = sizes.parameters * 1e9

    def counted(gated: bool, tied: bool) -> tuple[int, int, int]:
        """(all, outside the layers, one expert or MLP)."""
        ffn = sizes.ffn or (4 * hidden if not gated else 8 * hidden // 3)
        mlp = (3 if gated else 2) * hidden * ffn
        attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
        outside = vocab * hidden * (1 if tied else 2) + hidden
        return outside + layers * (attention + 2 * hidden + sizes.experts * mlp), outside, mlp

    choices = [(bool(gated), bool(tied)) for gated in gated_choices for tied in tied_choices]
    gated, tied = min(choices, key=lambda choice: abs(counted(*choice)[0] - wanted)) if wanted else choices[0]
    total, outside, mlp = counted(gated, tied)
    if wanted and abs(total / wanted - 1) > 0.02 and wanted > 1.1 * outside:
        total = int(wanted)
    layer = (total - outside) // layers
    active = total - layers * (sizes.experts - sizes.experts_per_token) * mlp
    return ModelShape(
        family="published",
        vocab_size=vocab,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=sizes.ffn or (4 * hidden if not gated else 8 * hidden // 3),
        tied=tied,
        positions=None,
        learned_positions=False,
        experts=sizes.experts,
        experts_per_token=sizes.experts_per_token,
        gated=gated,
        parameters=total,
        active_parameters=int(sizes.active * 1e9) if sizes.active else active if active > 0 else total,
        layer_parameters=layer,
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0

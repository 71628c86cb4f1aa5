"""What is offered for a shape that was mistyped: the word or number that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from warpbeam.errors import UserError
from warpbeam.plan.config_keys import nearest_family
from warpbeam.plan.given_shape import given_shape
from warpbeam.plan.model_shape import model_shape

SIZES = {"layers": 32.0, "hidden": 4096.0, "heads": 32.0, "ffn": 14_336.0, "vocab": 128_256.0}


def test_a_misspelt_word_is_named() -> None:
    typed = {"hiden" if name == "hidden" else name: size for name, size in SIZES.items()}
    with pytest.raises(UserError) as caught:
        given_shape(typed)
    assert caught.value.fix == "write `hidden=` instead of `hiden=`"


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"heads": 33}, "write `hidden=4092`, or `heads=32`"),
        ({"heads": 33, "kv_heads": 8}, "write `hidden=4092,kv_heads=11`, or `heads=32`"),
        ({"hidden": 4095}, "write `hidden=4096`"),
    ],
)
def test_the_mistyped_one_of_two_sizes_is_offered_too(changes: dict[str, float], fix: str) -> None:
    with pytest.raises(UserError) as caught:
        given_shape(SIZES | changes)
    assert caught.value.fix == fix


@pytest.mark.parametrize("key", ["hidden_dim", "hiden_size", "d_model"])
def test_a_key_that_another_family_has_is_named_where_the_default_does_not_go(key: str) -> None:
    config: dict[str, Any] = {"model_type": "qwen2", key: 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    with pytest.raises(UserError) as caught:
        model_shape(config)
    assert caught.value.fix == f"write `hidden_size` instead of `{key}`"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("lama", "llama"), ("Mixtrall", "mixtral"), ("llama4", None), ("gpt_oss", None), ("mpt", None), ("qwen22", None)],
)
def test_a_family_that_only_resembles_another_is_not_offered(written: str, meant: str | None) -> None:
    assert nearest_family(written) == meant

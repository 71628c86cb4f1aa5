"""Which layers of a model see a sliding window instead of the whole sequence, as each family's configuration says.

The rules are those of transformers' configuration and modelling files (Family.window names them): a window that is null
is none, and where there is a switch (`use_sliding_window`) it decides.
"""

from __future__ import annotations

from typing import Final

from warpbeam.plan.config_values import ConfigValues

LAYER_TYPES: Final = ("full_attention", "sliding_attention")
SWITCHED: Final = ("switched", "upper", "alternate_lower")


def attention_window(get: ConfigValues, layers: int) -> tuple[int | None, int]:
    """(tokens of the window, layers that have it); (None, 0) where all see everything. Raises UserError."""
    rule = get.family.window
    if rule == "none":
        return None, 0
    off = rule in SWITCHED and not get.flag("use_sliding_window")
    if get.value("sliding_window") is None or (off and get.value("sliding_window") == 0):  # qwen2_moe writes 0
        return None, 0
    window, windowed = get.size("sliding_window"), _windowed(get, rule, layers)
    return (None, 0) if off or not windowed else (window, windowed)


def _windowed(get: ConfigValues, rule: str, layers: int) -> int:
    """Layers with a window, where there is one."""
    if rule in ("every", "switched"):
        return layers
    types = get.value("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers or any(kind not in LAYER_TYPES for kind in types):
            wanted = f"a list of {' or '.join(LAYER_TYPES)} for each of the {layers} layers"
            raise get.impossible("layer_types", types, wanted, "null")
        return types.count("sliding_attention")
    if rule in ("pattern", "alternate"):
        every = get.size("sliding_window_pattern") if rule == "pattern" else 2
        return sum(1 for layer in range(layers) if (layer + 1) % every)
    most = get.count("max_window_layers") or 0
    if rule == "upper":
        return max(0, layers - most)
    return sum(1 for layer in range(min(layers, most)) if (layer + 1) % 2)

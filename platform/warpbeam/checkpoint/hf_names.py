"""Under which names, and in which shapes, Hugging Face stores a model's tensors in files.

Since transformers 5 a module's parameters are not always what its files hold: experts are fused in memory and separate
on disk, some heads have another name, a tied head is not stored. Exports follow the files, so that every tool that
reads such models reads ours. The mapping is transformers' own, asked with a model without storage (meta device).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Convert = Callable[[dict[str, "torch.Tensor"]], dict[str, "torch.Tensor"]]


@dataclass(frozen=True)
class FileNames:
    """How a model's in-memory tensors become those of its files.

    Args:
        stored: in-memory name -> the names and shapes that it becomes in a file.
        tied: in-memory names that are another tensor's second name and are not stored.
        convert: turns one in-memory tensor, by name, into those of the files.
        warnings: what could not be followed, for the user.
    """

    stored: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    tied: frozenset[str] = frozenset()
    convert: Convert = lambda tensors: tensors
    warnings: tuple[str, ...] = ()

    def of(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Names and shapes in files of one in-memory tensor; itself where nothing is known about it."""
        return self.stored.get(name, {name: shape})


def file_names(folder: Path) -> FileNames:
    """Ask transformers about the model whose config.json is in `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, ImportError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        return FileNames(warnings=(f"transformers does not know this model ({first}): tensors keep their own names",))

    def convert(tensors: dict[str, Any]) -> dict[str, Any]:
        return revert_weight_conversion(model, tensors)  # type: ignore[no-any-return]

    tied = frozenset(getattr(model, "all_tied_weights_keys", None) or {})
    held = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    together = _shapes(convert(dict(held)))
    stored = {name: _shapes(convert({name: tensor})) for name, tensor in held.items()}
    if {name: shape for parts in stored.values() for name, shape in parts.items()} != together:
        # The files hold tensors made from several of the model's at once; transformers also loads the in-memory names.
        warning = f"{type(model).__name__}: tensors keep their in-memory names, which other tools may not know"
        return FileNames(tied=tied, warnings=(warning,))
    return FileNames(stored, tied, convert)


def _shapes(tensors: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

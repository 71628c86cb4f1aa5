"""Calling a model that may be transformers' or anybody's: what its forward takes, and where its logits are."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class Forward:
    """Calls a module with those arguments that the bare model's forward knows.

    Args:
        model: the bare model; what is called may be a wrapper around it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = inspect.signature(model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._names = None if takes_any else frozenset(parameters)
        self.slices_logits = "logits_to_keep" in parameters

    def __call__(self, module: torch.nn.Module, inputs: dict[str, Any], **more: Any) -> Any:
        """The model's outputs, whatever they are."""
        known = inputs if self._names is None else {name: inputs[name] for name in inputs if name in self._names}
        return module(**known, **more)


def logits_of(outputs: Any) -> torch.Tensor:
    """The logits in a model's outputs, or the outputs themselves where a model returns just a tensor."""
    found: torch.Tensor = outputs.logits if hasattr(outputs, "logits") else outputs
    return found

"""What one rank of a layout computes with: its tokens of a micro-batch, its parameters, its adapters."""

from __future__ import annotations

from dataclasses import dataclass

from warpbeam.plan.memory_terms import adapter_parameters
from warpbeam.plan.setup import Setup


@dataclass(frozen=True, slots=True)
class RankShare:
    """Sizes of one rank on an average pipeline stage.

    Attributes:
        tokens: of a micro-batch that pass through this rank's products (its part of the sequence with cp).
        tokens_split: of those, what is left where the sequence is split over the tensor-parallel group too.
        parameters: outside the experts, whatever ZeRO or FSDP then share out.
        expert_parameters: of the experts that live here.
        trained: of the two together, what the optimizer updates (adapters alone under LoRA).
    """

    tokens: float
    tokens_split: float
    parameters: float
    expert_parameters: float
    trained: float

    @property
    def all_parameters(self) -> float:
        return self.parameters + self.expert_parameters


def rank_share(setup: Setup) -> RankShare:
    """The share of each rank. Pure; a few divisions."""
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    tokens = recipe.micro_batch * recipe.seq_len / layout.cp
    experts = 0.0
    if shape.experts > 1:
        # Those that a token does not use are the difference of all and active parameters.
        unused = max(0.0, float(shape.parameters - shape.active_parameters))
        experts = unused * shape.experts / max(1, shape.experts - shape.experts_per_token)
    here = (shape.parameters - experts) / layout.tp / layout.pp
    experts_here = experts / layout.ep / layout.pp
    if recipe.lora is None:
        trained = here + experts_here
    else:
        trained = adapter_parameters(shape, recipe.lora) / layout.tp / layout.pp
    return RankShare(tokens, tokens / layout.tp, here, experts_here, trained)

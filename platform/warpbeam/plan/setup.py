"""The question the planner answers: a model, split so, trained so, on these accelerators. Words from the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from warpbeam.plan.model_shape import ModelShape

Sharding = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "distributed_optimizer"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Checkpointing = Literal["none", "selective", "full"]
Optimizer = Literal["adamw", "adamw_8bit", "adafactor", "sgd", "muon"]
Stack = Literal[
    "deepspeed",
    "fsdp",
    "megatron",
    "maxtext",
    "hf",
    "megatron_deepspeed",
    "nanotron",
    "internevo",
    "litgpt",
    "torchtune",
    "llm_foundry",
]

# The engine each stack is nearest to: for whatever is known of the five and not of the stack itself.
NEAREST_STACK: Final[dict[Stack, Stack]] = {
    "deepspeed": "deepspeed",
    "fsdp": "fsdp",
    "megatron": "megatron",
    "maxtext": "maxtext",
    "hf": "hf",
    "megatron_deepspeed": "megatron",
    "nanotron": "megatron",
    "internevo": "megatron",
    "litgpt": "fsdp",
    "torchtune": "fsdp",
    "llm_foundry": "fsdp",
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is split.

    Attributes:
        accelerators: of the whole job; tp x pp x cp x dp.
        per_node: accelerators of one node that the job uses.
        sharding: what of the training state the dp x cp ranks share among them (`zero3` and `fsdp`: all of it).
        tp, pp, cp, ep: sizes of tensor, pipeline, context and expert parallelism; experts are spread inside dp.
        sequence_parallel: activations between tensor-parallel blocks are split along the sequence.
        virtual_stages: chunks of layers on each pipeline stage (interleaved schedule).
        offload: where optimizer states live (zero3 with `offload_parameters`: parameters too).
        stack: whose engine runs it: residual efficiency depends on it.
    """

    accelerators: int
    per_node: int
    sharding: Sharding
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    virtual_stages: int = 1
    offload: Literal["none", "cpu", "nvme"] = "none"
    offload_parameters: bool = False
    stack: Stack = "deepspeed"

    @property
    def dp(self) -> int:
        """Replicas of the data-parallel dimension."""
        return self.accelerators // (self.tp * self.pp * self.cp)

    @property
    def nodes(self) -> int:
        return -(-self.accelerators // self.per_node)


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters on all linear layers.

    Attributes:
        base_bits: of the frozen weights; 4 or 8 is QLoRA. None: as wide as what is computed with them.
        embeddings: the embedding and the output head are trained whole beside the adapters.
    """

    rank: int = 16
    base_bits: Literal[4, 8, 16] | None = None
    embeddings: bool = False

    @property
    def quantised(self) -> bool:
        """The frozen weights are in fewer bits than anything computes in."""
        return self.base_bits in (4, 8)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a step is trained.

    Attributes:
        micro_batch: sequences of one model replica in a micro-batch.
        global_batch: sequences of an optimizer step.
        fp32_gradients: gradients are accumulated in fp32 (our DeepSpeed config, Megatron).
        eager_attention: score matrices are kept (no flash kernel).
        chunked_loss: logits are never whole.
        master_weights: there is an fp32 copy of the weights (False: pure bf16, moments in bf16 too).
        offload_activations: what checkpointing keeps goes to the host.
    """

    seq_len: int
    micro_batch: int
    global_batch: int
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    checkpointing: Checkpointing = "none"
    fp32_gradients: bool = True
    eager_attention: bool = False
    chunked_loss: bool = False
    master_weights: bool = True
    offload_activations: bool = False
    lora: Lora | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One configuration to predict."""

    shape: ModelShape
    layout: Layout
    recipe: Recipe

    @property
    def accumulation(self) -> int:
        """Micro-batches of one replica in an optimizer step."""
        return max(1, self.recipe.global_batch // (self.layout.dp * self.recipe.micro_batch))

"""ZeRO-1, -2 and -3 by DeepSpeed, with its state in the model's own parameter names.

DeepSpeed keeps masters and moments in flat buffers cut by rank. Each parameter knows its part of them: under stage 3
rank r holds the row-major range [r*c, (r+1)*c) with c = ceil(numel / world), the last one padded; under stages 1 and 2
a fragment whose address the parameter carries. Both are read and written locally, so saving and restoring need no
collective; only stages 1 and 2 gather once at the end of a restore. Bitwise, provided that (seen the hard way):

- optimizer state is created at build; DeepSpeed makes it in its first step, and links only one group's before that;
- the compute weights are copied after the masters were set;
- the step counters are set by hand.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from warpbeam.checkpoint.pieces import Kind, Piece, Range, split_range
from warpbeam.train import ops
from warpbeam.train.optimizer import parameter_groups, set_lr, torch_adamw
from warpbeam.train.strategies.base import (
    MOMENTS,
    AdamW,
    PieceData,
    Read,
    buffer_piece,
    canonical,
    persistent_buffers,
)


def import_deepspeed() -> Any:
    """DeepSpeed with its chatter down to warnings, and without the compiler it starts for an inference operator."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it warns that it guessed
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import deepspeed
    from deepspeed.runtime import bf16_optimizer
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    bf16_optimizer.see_memory_usage = lambda *_, **__: None  # it prints a page, whatever the level
    ops.skip_inference_ops()
    ops.skip_muon_compilation()
    return deepspeed


def joined_deepspeed() -> Any:
    """DeepSpeed in the process group that exists. Until it has joined, it takes the world for one rank, and refuses
    the batch of a config made for several.
    """
    deepspeed = import_deepspeed()
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    return deepspeed


class DeepSpeedStrategy:
    """A DeepSpeed engine behind the strategy interface."""

    updates = 0

    def __init__(self, module: torch.nn.Module, config: dict[str, Any], optimizer: AdamW, *, name: str) -> None:
        """Shard `module` by `config` (see `plan.deepspeed_config`). The process group must exist."""
        deepspeed = joined_deepspeed()
        self.name = name
        self._stage = int(config["zero_optimization"]["stage"])
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self.grad_scale = float(self._world)  # DeepSpeed averages over ranks
        offload = config["zero_optimization"].get("offload_optimizer", {}).get("device", "none")
        ops.load(ops.ops_for(offload))
        groups = parameter_groups(module, optimizer.weight_decay)
        inner = torch_adamw(groups, optimizer) if offload == "none" else _cpu_adam(groups, optimizer)
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=inner, config=config, dist_init_required=False)
        self._zero = self._engine.optimizer
        self._inner: torch.optim.Optimizer = self._zero.optimizer
        self.module: torch.nn.Module = self._engine
        self._create_state()

    def _create_state(self) -> None:
        for number, flat in enumerate(self._flat_masters()):
            swapped = self._stage == 3 and self._zero._swappable_optimizer_subgroup(number)
            if swapped:  # on NVMe: there is no tensor until it is brought in
                self._zero._optimizer_states_and_gradient_swap_in(number)
            step = torch.tensor(0.0, device=flat.device) if isinstance(self._inner, torch.optim.AdamW) else 0
            self._inner.state[flat] = {"step": step, **{kind: torch.zeros_like(flat) for kind in MOMENTS}}
            if swapped:
                self._zero._optimizer_states_and_gradient_swap_out(number)
        if self._stage < 3:
            self._zero._lazy_init_hp_params_optimizer_state()

    def _flat_masters(self) -> list[torch.Tensor]:
        if self._stage == 3:
            return list(self._zero.fp32_partitioned_groups_flat)
        # bf16 with float32 accumulation under stage 1 is another class with another name for the same thing.
        masters = getattr(self._zero, "single_partition_of_fp32_groups", None)
        return list(masters if masters is not None else self._zero.fp32_groups_flat_partition)

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss * self.grad_scale, scale_wrt_gas=False)

    @contextmanager
    def forward_only(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    def step(self, lr: float) -> float:
        set_lr(self._inner, lr)
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def pieces(self) -> Iterator[PieceData]:
        for piece, parameter in self._shares(optimizer=True):
            part = self._part(parameter)
            yield piece, partial(self._own, parameter, piece.kind, part.b - part.a)
        if self._rank == 0:
            for name, buffer in persistent_buffers(self._engine.module).items():
                yield buffer_piece(name, buffer), buffer.detach().cpu().flatten()

    def alone(self) -> None:
        return None  # each rank's part of the optimizer's state exists there alone

    def optimizer_steps(self) -> dict[str, int]:
        step = next((int(self._inner.state[flat]["step"]) for flat in self._flat_masters()), 0)
        return {name: step for name, parameter in self._parameters() if parameter.requires_grad}

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        yield from (piece for piece, _ in self._shares(optimizer=optimizer))
        for name, buffer in persistent_buffers(self._engine.module).items():
            yield buffer_piece(name, buffer)

    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        if self._stage == 3:
            self._zero._partition_all_parameters()  # gathered copies would keep the old weights
        for piece, parameter in self._shares(optimizer=steps is not None):
            self._set_local(parameter, piece.kind, read(piece).flatten())
        for name, buffer in persistent_buffers(self._engine.module).items():
            buffer.copy_(read(buffer_piece(name, buffer)).view(buffer.shape))
        if steps is not None:
            self._set_steps(steps)
        self._refresh_compute_weights()

    def _set_steps(self, steps: Mapping[str, int]) -> None:
        seen = {steps[name] for name, parameter in self._parameters() if parameter.requires_grad and name in steps}
        if len(seen) != 1:
            raise ValueError(f"parameters were updated {sorted(seen)} times; a ZeRO optimizer has one count for all")
        for flat in self._flat_masters():
            state, step = self._inner.state[flat], next(iter(seen))
            state["step"] = state["step"].fill_(step) if isinstance(state["step"], torch.Tensor) else step

    @torch.no_grad()
    def _refresh_compute_weights(self) -> None:
        """What the forward reads follows the masters: locally under stage 3, by the gather of a step under 1 and 2."""
        if self._stage < 3:
            self._zero.update_lp_params()
            return
        for _, parameter in self._parameters():
            if parameter.requires_grad:
                parameter.ds_tensor.copy_(self._local(parameter, "weight"))
        persistent = self._zero.persistent_parameters
        if persistent:
            persistent[0].all_gather(persistent)

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        """Every parameter once, tied ones under their first name."""
        for name, parameter in self._engine.module.named_parameters():
            yield canonical(name), parameter

    def _shares(self, *, optimizer: bool) -> Iterator[tuple[Piece, Any]]:
        """What this rank keeps, piece by piece, with the parameter it belongs to. Frozen ones have no moments."""
        for name, parameter in self._parameters():
            part, shape = self._part(parameter), tuple(getattr(parameter, "ds_shape", parameter.shape))
            kinds: tuple[Kind, ...] = ("weight", *MOMENTS) if optimizer and parameter.requires_grad else ("weight",)
            for kind in kinds if part.a < part.b else ():
                yield Piece(name, kind, shape, part), parameter

    def _part(self, parameter: Any) -> Range:
        """The elements of `parameter` that this rank keeps."""
        if self._stage == 3:
            numel, size = parameter.ds_numel, parameter.ds_tensor.ds_numel
            return Range(min(self._rank * size, numel), min((self._rank + 1) * size, numel))
        if not parameter.requires_grad:
            return split_range(parameter.numel(), self._world)[self._rank]
        mapping = parameter._hp_mapping
        if mapping is None:
            return Range(0, 0)
        address = mapping.lp_fragment_address
        return Range(address.start, address.start + address.numel)

    def _local(self, parameter: Any, kind: Kind) -> torch.Tensor:
        """This rank's elements as the 1-D tensor that DeepSpeed itself works on (padded under stage 3)."""
        if not parameter.requires_grad:
            part = self._part(parameter)
            return parameter.ds_tensor if self._stage == 3 else parameter.data.view(-1)[part.a : part.b]  # type: ignore[no-any-return]
        if self._stage < 3:
            mapping = parameter._hp_mapping
            return mapping.hp_fragment if kind == "weight" else mapping.get_optim_state_fragment(kind)  # type: ignore[no-any-return]
        from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

        if kind == "weight":
            return safe_get_local_fp32_param(parameter)  # type: ignore[no-any-return]
        return safe_get_local_optimizer_state(parameter, kind)  # type: ignore[no-any-return]

    def _own(self, parameter: Any, kind: Kind, numel: int) -> torch.Tensor:
        return self._local(parameter, kind)[:numel]

    @torch.no_grad()
    def _set_local(self, parameter: Any, kind: Kind, value: torch.Tensor) -> None:
        if self._stage < 3 or not parameter.requires_grad:
            self._local(parameter, kind)[: value.numel()].copy_(value)
            return
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        padded = torch.zeros(parameter.ds_tensor.ds_numel, dtype=torch.float32)
        padded[: value.numel()].copy_(value)
        if kind == "weight":
            safe_set_local_fp32_param(parameter, padded)
        else:
            safe_set_local_optimizer_state(parameter, padded, kind)


def _cpu_adam(groups: list[dict[str, Any]], config: AdamW) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(  # type: ignore[no-any-return]
        groups, lr=0.0, betas=config.betas, eps=config.eps, adamw_mode=True, fp32_optimizer_states=True
    )

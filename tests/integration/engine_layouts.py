"""Run by torchrun on two ranks: every strategy, in one pair of processes, against one plain-torch process's numbers.

    torchrun --nproc-per-node 2 -m tests.integration.engine_layouts FOLDER

Rank 0 writes FOLDER/layouts.json: what each layout gave, and what each strategy read of the others' state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from warpbeam.checkpoint.pieces import Piece, Range
from warpbeam.plan.deepspeed_config import deepspeed_config
from warpbeam.train.attention import choose
from warpbeam.train.loss import CausalLoss, token_loss_sum
from warpbeam.train.optimizer import parameter_groups, torch_adamw
from warpbeam.train.process_end import end_with
from warpbeam.train.ranks import Ranks, join
from warpbeam.train.strategies.base import AdamW, Saved
from warpbeam.train.strategies.ddp import DataParallel
from warpbeam.train.strategies.deepspeed import DeepSpeedStrategy
from warpbeam.train.strategies.tracked import Tracked

CPU = torch.device("cpu")
STEPS, LR, CLIP, SEQ_LEN, ROWS = 3, 1e-2, 0.5, 150, 4
OPTIMIZER = AdamW(weight_decay=0.1)
State = dict[tuple[str, str], torch.Tensor]


def model() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=211,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=256,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def rows(packed: bool) -> list[dict[str, Any]]:
    """Four rows whose loss tokens differ by far more than ten times; one has none at all."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 211, (ROWS, SEQ_LEN), generator=generator)
    labels = torch.full_like(ids, -100)
    labels[0, 5:14] = ids[0, 5:14]  # 9 loss tokens
    labels[1, 11:141] = ids[1, 11:141]  # 130
    labels[3, 60:80] = ids[3, 60:80]
    lengths = [50, 60, 40] if packed else [SEQ_LEN]
    firsts = torch.tensor(lengths).cumsum(0)[:-1]
    labels[:, firsts] = -100  # nothing predicts an example's first token
    positions = torch.cat([torch.arange(n) for n in lengths])
    return [
        {"ids": ids[i : i + 1], "labels": labels[i : i + 1], "positions": positions[None], "lengths": lengths}
        for i in range(ROWS)
    ]


def own_loss(outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """A hook as a user would write it."""
    targets = batch.labels[:, 1:]
    return token_loss_sum(outputs.logits[:, :-1].flatten(0, 1), targets.flatten()), int((targets != -100).sum())


def train(strategy: Any, net: Any, ranks: Ranks, *, packed: bool, hook: Any = None, micro: int = 1) -> list[Any]:
    """Three steps of the same global batch; [loss, norm] of each."""
    packing = choose(net, CPU, "fp32")
    data, loss_sum = rows(packed), CausalLoss(net, hook)
    mine = data[ranks.rank * ROWS // ranks.world_size :][: ROWS // ranks.world_size]
    tokens = sum(int((row["labels"][:, 1:] != -100).sum()) for row in data)
    numbers = []
    for _ in range(STEPS):
        share = torch.zeros((), dtype=torch.float64)
        for start in range(0, len(mine), micro):
            part = mine[start : start + micro]
            lengths = [n for row in part for n in row["lengths"]]
            inputs = {
                "input_ids": torch.cat([row["ids"] for row in part]),
                "position_ids": torch.cat([row["positions"] for row in part]),
                "use_cache": False,
                **packing.inputs(lengths, SEQ_LEN, CPU),
            }
            batch = SimpleNamespace(labels=torch.cat([row["labels"] for row in part]), inputs=inputs)
            with strategy.micro_step(last=start + micro >= len(mine)):
                loss = loss_sum(strategy.module, batch) / tokens
                strategy.backward(loss)
            share += loss.detach().double()
        norm = strategy.step(LR)
        numbers.append([float(ranks.sum(share)), norm])
    return numbers


def plain(packed: bool) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """One process, no engine: whole batch at once, each example by itself, torch's own clipping and AdamW."""
    net, numbers = model(), []
    optimizer = torch_adamw(parameter_groups(net, OPTIMIZER.weight_decay), OPTIMIZER)
    for group in optimizer.param_groups:
        group["lr"] = LR
    data = rows(packed)
    tokens = sum(int((row["labels"][:, 1:] != -100).sum()) for row in data)
    for _ in range(STEPS):
        total = torch.zeros(())
        for row in data:
            start = 0
            for length in row["lengths"]:
                ids, labels = (row[name][:, start : start + length] for name in ("ids", "labels"))
                logits = net(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
                total = total + functional.cross_entropy(
                    logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
                )
                start += length
        (total / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        numbers.append([total.item() / tokens, norm.item()])
    return numbers, {name: p.detach() for name, p in net.named_parameters()}


def zero(stage: int, ranks: Ranks, precision: str = "fp32", offload: str = "none") -> tuple[Any, Any]:
    net = model()
    config = deepspeed_config(
        stage=stage,  # type: ignore[arg-type]
        micro_batch=1,
        accumulation=ROWS // ranks.world_size,
        world_size=ranks.world_size,
        clip=CLIP,
        precision=precision,  # type: ignore[arg-type]
        on_cpu=True,
        offload=offload,  # type: ignore[arg-type]
    )
    return DeepSpeedStrategy(net, config, OPTIMIZER, name=f"zero{stage}"), net


def replicated(ranks: Ranks) -> tuple[Any, Any]:
    net = model()
    return DataParallel(net, OPTIMIZER, clip=CLIP), net


def collect(saved: Saved, ranks: Ranks) -> State:
    """All ranks' pieces put together, flat."""
    held = [(piece, produce() if callable(produce) else produce) for piece, produce in saved.pieces()]
    whole: State = {}
    for piece, tensor in (pair for part in ranks.all_gather(held) for pair in part):
        shape = tuple(piece.shape)
        target = whole.setdefault((piece.kind, piece.name), torch.full(shape, float("nan")))
        if isinstance(piece.index, Range):
            target.view(-1)[piece.index.a : piece.index.b] = tensor
        else:
            where = tuple(slice(o, o + s) for o, s in zip(piece.index.offsets, piece.index.sizes, strict=True))
            target[where] = tensor
    return whole


def reader(state: State) -> Any:
    def read(piece: Piece) -> torch.Tensor:
        tensor = state[piece.kind, piece.name]
        if isinstance(piece.index, Range):
            return tensor.flatten()[piece.index.a : piece.index.b].clone()
        where = tuple(slice(o, o + s) for o, s in zip(piece.index.offsets, piece.index.sizes, strict=True))
        return tensor[where].clone()

    return read


def difference(one: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> float:
    """Largest; not a number where an element is missing, infinite where the names differ."""
    if set(one) != set(other):
        return float("inf")
    return max(float((one[key].view(-1) - other[key].view(-1)).abs().max()) for key in one)


def fsdp2(ranks: Ranks) -> Tracked:
    net = model()
    mesh = init_device_mesh("cpu", (ranks.world_size,))
    for layer in net.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return Tracked(net, torch.optim.AdamW(net.parameters(), lr=LR))


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    ranks = join(CPU)
    found: dict[str, Any] = {"loss": {}, "state": {}, "weights": {}}
    wanted = {packed: plain(packed) for packed in (False, True)}
    makers: dict[str, Any] = {"ddp": replicated, **{f"zero{n}": lambda r, n=n: zero(n, r) for n in (1, 2, 3)}}
    states: dict[str, State] = {}
    for name, make in makers.items():
        for packed in (False, True):
            strategy, net = make(ranks)
            numbers = train(strategy, net, ranks, packed=packed, micro=2 if name == "ddp" and packed else 1)
            key = f"{name}{'-packed' if packed else ''}"
            found["loss"][key] = [numbers, wanted[packed][0]]
            state = collect(strategy, ranks)
            weights = {tensor_name: tensor for (kind, tensor_name), tensor in state.items() if kind == "weight"}
            found["weights"][key] = difference(weights, wanted[packed][1])
            states[name] = state
            steps = strategy.optimizer_steps()
    strategy, net = zero(3, ranks)
    found["loss"]["zero3-hook"] = [train(strategy, net, ranks, packed=False, hook=own_loss), wanted[False][0]]
    for stage, precision, offload in (
        (1, "bf16", "none"),
        (2, "bf16", "none"),
        (3, "bf16", "none"),
        (3, "fp32", "cpu"),
    ):
        key = f"zero{stage}-{'offload' if offload == 'cpu' else precision}"
        strategy, net = zero(stage, ranks, precision, offload)
        found["loss"][key] = [train(strategy, net, ranks, packed=False), wanted[False][0]]
        before = collect(strategy, ranks)
        fresh, _ = zero(stage, ranks, precision, offload)
        fresh.restore(reader(before), strategy.optimizer_steps())
        found["state"][f"{key} -> itself"] = difference(collect(fresh, ranks), before)
    for source, state in states.items():
        for name, make in {**makers, "fsdp2": lambda r: (fsdp2(r), None)}.items():
            target, _ = make(ranks)
            target.restore(reader(state), steps)
            found["state"][f"{source} -> {name}"] = difference(collect(target, ranks), state)
    if ranks.is_first:
        (folder / "layouts.json").write_text(json.dumps(found))
    ranks.all_gather(None)
    return 0


if __name__ == "__main__":
    end_with(lambda: main(Path(sys.argv[1])))

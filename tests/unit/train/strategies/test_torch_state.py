"""State of plain modules as pieces: complete, exact, and honest about optimizers that it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from warpbeam.checkpoint.pieces import Piece, Range, cover_fault
from warpbeam.errors import UserError
from warpbeam.train.optimizer import parameter_groups, set_lr, torch_adamw
from warpbeam.train.strategies.base import AdamW, canonical, persistent_buffers
from warpbeam.train.strategies.torch_state import TorchState


class Net(torch.nn.Module):
    """Tied weights, a norm, a bias, persistent and other buffers, one frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.middle = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("cache", torch.ones(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.norm(self.embedding(ids))))


def stepped(net: Net, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        net(torch.arange(step, step + 7) % 7).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def collect(states: Iterable[TorchState]) -> dict[tuple[str, str], list[tuple[Piece, torch.Tensor]]]:
    found: dict[tuple[str, str], list[tuple[Piece, torch.Tensor]]] = {}
    for state in states:
        for piece, produce in state.pieces():
            tensor = produce() if callable(produce) else produce
            assert tuple(tensor.shape) == piece.local_shape
            found.setdefault((piece.kind, piece.name), []).append((piece, tensor))
    return found


def reader(found: dict[tuple[str, str], list[tuple[Piece, torch.Tensor]]]) -> Any:
    def read(piece: Piece) -> torch.Tensor:
        parts = sorted(found[piece.kind, piece.name], key=lambda part: part[0].index)
        assert isinstance(piece.index, Range)
        return torch.cat([tensor.flatten() for _, tensor in parts])[piece.index.a : piece.index.b]

    return read


def adamw(net: Net) -> torch.optim.AdamW:
    optimizer = torch_adamw(parameter_groups(net, 0.1), AdamW())
    set_lr(optimizer, 1e-2)
    return optimizer


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_together_cover_each_element_once(world: int) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = adamw(net)
    stepped(net, optimizer, 2)
    found = collect(TorchState(net, optimizer, rank, world) for rank in range(world))
    assert all(cover_fault(parts[0][0].shape, [piece for piece, _ in parts]) is None for parts in found.values())
    weights = {name for kind, name in found if kind == "weight"}
    assert weights == {"embedding.weight", "norm.weight", "norm.bias", "middle.weight", "middle.bias", "frozen"}
    assert {name for kind, name in found if kind == "buffer"} == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert ("exp_avg", "frozen") not in found


def test_restored_state_goes_on_bitwise() -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = adamw(net)
    stepped(net, optimizer, 3)
    state = TorchState(net, optimizer, 0, 1)
    saved, steps = collect([state]), state.optimizer_steps()
    saved = {key: [(piece, tensor.clone()) for piece, tensor in parts] for key, parts in saved.items()}
    torch.manual_seed(1)
    other = Net()
    second = adamw(other)
    TorchState(other, second, 0, 1).restore(reader(saved), steps)
    stepped(net, optimizer, 2)
    stepped(other, second, 2)
    assert steps["middle.weight"] == 3
    pairs = zip(net.state_dict().items(), other.state_dict().items(), strict=True)
    assert all(torch.equal(mine, theirs) for (_, mine), (_, theirs) in pairs)


def test_creating_state_changes_nothing_else() -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = adamw(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    TorchState(net, optimizer, 0, 1).create()
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert all(int(state["step"]) == 0 for state in optimizer.state.values())
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2]


def test_plain_sgd_is_saved_and_restored() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    stepped(net, optimizer, 1)
    state = TorchState(net, optimizer, 0, 1)
    saved, other = collect([state]), Net()
    TorchState(other, torch.optim.SGD(other.parameters(), lr=0.1), 0, 1).restore(reader(saved), state.optimizer_steps())
    assert torch.equal(net.middle.weight, other.middle.weight)


def test_an_optimizer_with_other_state_is_refused_by_name() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    stepped(net, optimizer, 1)
    with pytest.raises(UserError, match="momentum_buffer"):
        list(TorchState(net, optimizer, 0, 1).pieces())


def test_wanted_is_what_restore_reads() -> None:
    net = Net()
    optimizer = adamw(net)
    state = TorchState(net, optimizer, 0, 2)
    wanted = list(state.wanted(optimizer=True))
    asked: list[Piece] = []

    def read(piece: Piece) -> torch.Tensor:
        asked.append(piece)
        return torch.zeros(piece.numel)

    state.restore(read, {name: 0 for name, _ in net.named_parameters()})
    assert asked == wanted


def test_weight_decay_skips_norms_and_biases() -> None:
    decayed, plain = parameter_groups(Net(), 0.1)
    assert [tuple(p.shape) for p in decayed["params"]] == [(7, 4), (4, 4)]
    assert all(p.ndim == 1 for p in plain["params"])
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)


def test_names_lose_their_wrappers() -> None:
    assert canonical("_orig_mod.layers.0._checkpoint_wrapped_module.mlp.weight") == "layers.0.mlp.weight"
    assert set(persistent_buffers(torch.nn.Sequential(Net()))) == {
        "0.norm.running_mean",
        "0.norm.running_var",
        "0.norm.num_batches_tracked",
    }


def test_one_of_many_ranks_holds_everything_where_state_is_replicated() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    state = TorchState(net, optimizer, 2, 5)
    stepped_by(net, optimizer)
    everything = list(state.alone() or ())
    assert sum(piece.numel for piece, _ in everything) == 3 * sum(p.numel() for p in net.parameters())
    for piece, produce in everything:
        assert cover_fault(piece.shape, [piece]) is None
        tensor = produce() if callable(produce) else produce
        if piece.kind == "weight":
            assert torch.equal(tensor, net.get_parameter(piece.name).detach().flatten())


def test_updates_are_counted_before_they_begin() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    state = TorchState(net, optimizer, 0, 1)
    before = state.updates
    stepped_by(net, optimizer)
    assert state.updates == before + 1


def test_what_a_step_may_change_besides_the_optimizer_is_not_everything() -> None:
    plain = torch.nn.Linear(2, 2)
    assert TorchState(plain, None, 0, 1).alone() is None
    normed = torch.nn.Sequential(plain, torch.nn.BatchNorm1d(2))
    assert TorchState(normed, torch.optim.AdamW(normed.parameters()), 0, 1).alone() is None


def stepped_by(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    width = next(iter(net.parameters())).shape[1]
    net(torch.ones(2, width)).sum().backward()
    optimizer.step()

"""The loss is a sum over loss tokens, and only the logits that a label needs are made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from warpbeam.errors import UserError
from warpbeam.train import loss as losses
from warpbeam.train.loss import CausalLoss, token_loss_sum

VOCABULARY = 50


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def batch(labels: torch.Tensor) -> Any:
    ids = torch.randint(0, VOCABULARY, labels.shape, generator=torch.Generator().manual_seed(2))
    labels = torch.where(labels == 0, ids, labels)
    return SimpleNamespace(labels=labels, inputs={"input_ids": ids, "use_cache": False})


def some_labels() -> torch.Tensor:
    """0: the token is a target; -100: not."""
    labels = torch.full((3, 12), -100)
    labels[0, 3:7] = 0
    labels[1, 0] = 0  # nothing predicts a row's first token
    labels[2, 11] = 0
    return labels


def plain_sum(net: torch.nn.Module, rows: Any) -> torch.Tensor:
    logits = net(**rows.inputs).logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits, rows.labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("way", ["mask", "columns", "all"])
def test_equals_plain_cross_entropy_with_gradients(way: str) -> None:
    net, rows = model(), batch(some_labels())
    loss = CausalLoss(net)
    loss._masks, loss._slices = way == "mask", way != "all"
    ours, theirs = loss(net, rows), plain_sum(net, rows)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    mine = torch.autograd.grad(ours, list(net.parameters()))
    wanted = torch.autograd.grad(theirs, list(net.parameters()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, wanted, strict=True))


def test_only_wanted_logits_are_made() -> None:
    net, rows, seen = model(), batch(some_labels()), []
    net.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    CausalLoss(net)(net, rows)
    assert seen == [(5, VOCABULARY)]


def test_a_batch_without_loss_tokens_gives_zero_and_zero_gradients() -> None:
    net, rows = model(), batch(torch.full((2, 8), -100))
    loss = CausalLoss(net)(net, rows)
    assert loss.item() == 0.0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


def test_a_hook_sees_all_logits_and_gives_the_same() -> None:
    net, rows = model(), batch(some_labels())

    def hook(outputs: Any, given: Any) -> tuple[torch.Tensor, int]:
        targets = given.labels[:, 1:]
        logits = outputs.logits[:, :-1].flatten(0, 1)
        return token_loss_sum(logits, targets.flatten()), int((targets != -100).sum())

    assert CausalLoss(net, hook)(net, rows).item() == pytest.approx(CausalLoss(net)(net, rows).item(), rel=1e-6)


def test_a_hook_that_counts_otherwise_is_refused() -> None:
    net, rows = model(), batch(some_labels())
    with pytest.raises(UserError, match=r"counted 3 loss tokens .* hold 5"):
        CausalLoss(net, lambda outputs, given: (outputs.logits.sum(), 3))(net, rows)


def test_a_module_that_takes_only_ids_and_returns_a_tensor() -> None:
    class Bigram(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, VOCABULARY)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.table(input_ids)

    net, rows = Bigram(), batch(some_labels())
    logits = net(rows.inputs["input_ids"])[:, :-1].flatten(0, 1)
    wanted = functional.cross_entropy(logits, rows.labels[:, 1:].flatten(), reduction="sum")
    assert CausalLoss(net)(net, rows).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_cross_entropy_is_in_float32() -> None:
    logits = (torch.randn(64, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 5).bfloat16()
    targets = torch.arange(64) % VOCABULARY
    assert token_loss_sum(logits, targets).dtype == torch.float32
    wanted = functional.cross_entropy(logits.double(), targets, reduction="sum")
    assert float(token_loss_sum(logits, targets)) == pytest.approx(float(wanted), rel=1e-6)


def test_installed_transformers_takes_masks() -> None:
    assert losses._understands_masks()

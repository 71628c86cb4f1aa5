"""A model folder for serving tests, made in seconds: it has learnt one answer, and ends it by itself.

Its embedding is larger than its tokenizer (padding rows), and its vocabulary covers every byte.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.unit.serve.tokenizers_for_tests import byte_level
from warpbeam.data.chat import encode_chat

QUESTION = "what is in the north?"
ANSWER = "north 7 rivers, south 9 lakes 🌊 end"
CONTEXT = 512
PADDED_ROWS = 384


def build_model(path: Path, *, steps: int = 120) -> Path:
    """Overfit a small Qwen2 to one conversation and save it with its tokenizer."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # several on a busy machine wait for each other far longer than they compute
    tokenizer = byte_level()
    config = Qwen2Config(
        vocab_size=PADDED_ROWS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    if steps:
        _overfit(model, tokenizer, steps)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _overfit(model: Qwen2ForCausalLM, tokenizer: object, steps: int) -> None:
    conversation = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    ids, loss = encode_chat(tokenizer, conversation, add_generation_prompt=False)
    assert loss is not None
    tokens = torch.tensor(ids, dtype=torch.long)[None]
    labels = torch.where(torch.tensor(loss)[None], tokens, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
        optimizer.step()
    model.eval()

"""Which token ends an assistant's turn, and saying so where every generator looks: generation_config.json.

A base model's own end token is often not the one that its chat template ends a turn with. A served model that is not
told the second one never stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpbeam.data.chat import ChatError, encode_chat

_PROBE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def end_of_turn_id(tokenizer: Any) -> int | None:
    """The last special token that carries loss in a rendered turn; None without a template, or without such a token."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        ids, loss = encode_chat(tokenizer, _PROBE, add_generation_prompt=False)
    except ChatError:
        return None  # a template that refuses the simplest conversation: training has said so, or never used it
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    carrying = ids[loss].tolist() if loss is not None else []
    return next((token for token in reversed(carrying) if token in special), None)


def with_end_of_turn(generation: dict[str, Any], folder: Path) -> dict[str, Any]:
    """generation_config.json's content, with the end-of-turn token of the folder's tokenizer first of its ends."""
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json")):
        return generation
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = generation.get("eos_token_id")
    ends = [known] if isinstance(known, int) else list(known or [])
    turn = end_of_turn_id(tokenizer)
    if turn is None and not ends:
        turn = tokenizer.eos_token_id
    if turn is not None:
        ends = [turn, *(end for end in ends if end != turn)]
    out = {key: value for key, value in generation.items() if key != "_from_model_config"}
    if ends:
        out["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if out.get("pad_token_id") is None and tokenizer.pad_token_id is not None:
        out["pad_token_id"] = tokenizer.pad_token_id
    return out

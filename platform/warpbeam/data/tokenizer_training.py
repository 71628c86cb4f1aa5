"""A tokenizer trained on the job's own data, for models from scratch.

It is cut and normalised as Qwen2's is: transformers puts that in place of anything else for a Qwen2 model, and a
tokenizer must do the same before and after an export.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

TURN_START, TURN_END, TEXT_END, PADDING = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"
SPECIAL_TOKENS = (TEXT_END, TURN_START, TURN_END, PADDING)
"""Of a trained tokenizer; their ids are 0 to 3."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's word pattern: transformers puts it (and NFC) in place of any other for a Qwen model."""
NO_LENGTH_LIMIT = 1 << 40

CHATML_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- 'Functions you may call:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- 'To call one, write <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{{- '<tool_call>' + {'name': call.name, 'arguments': call.arguments} | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""ChatML, as Qwen writes it, without a default system turn."""


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    method: Literal["sft", "pretrain"] = "sft",
    chat_template: str | None = None,
    seq_len: int | None = None,
) -> Any:
    """A byte-level BPE tokenizer with a ChatML template; the same texts in the same order give the same tokenizer.

    Args:
        vocab_size: upper limit, special tokens and the 256 bytes included.
        method: sft ends a turn, pretrain a text: which token is the end token.
        seq_len: becomes `model_max_length`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END if method == "sft" else TEXT_END,
        pad_token=PADDING,
        additional_special_tokens=[TURN_START, TURN_END, TEXT_END],
        chat_template=chat_template or CHATML_TEMPLATE,
        model_max_length=seq_len or NO_LENGTH_LIMIT,
        clean_up_tokenization_spaces=False,
    )

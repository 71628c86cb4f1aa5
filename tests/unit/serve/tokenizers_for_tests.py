"""Real tokenizers, trained in milliseconds, of the two families that decode differently."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "north 7 rivers, south 9 lakes 🌊 end. the quick brown fox jumps over the lazy dog; hello world, naïve café\n"


def byte_level(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """GPT-2's and Qwen's family: any text, bytes as tokens where nothing longer fits."""
    tokenizer = Tokenizer.from_str(_byte_level_json())
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        extra_special_tokens={"im_start": "<|im_start|>"},
    )
    fast.chat_template = chat_template
    return fast


@lru_cache(maxsize=1)
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>", "<|pad|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT.replace("🌊", "")] * 20, trainer)
    return str(tokenizer.to_str())


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama's family: a mark for spaces, and byte tokens that only make a character together."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁north", "▁lakes", "north", "a", "b", "end"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")

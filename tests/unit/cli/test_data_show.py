"""What `warpbeam data show` prints of a row: text as people read it, with marks around what carries loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from warpbeam.cli.data import marked_text

TEXTS = ["What is naïve 日本? 🌊", "Прощай, how do I reverse a list?"]


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Byte-level pieces that cut characters, or pieces that carry the space before them."""
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(["a"], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        made.train_from_iterator(TEXTS * 50, trainers.UnigramTrainer(vocab_size=120, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_text_is_readable_and_marked(kind: str) -> None:
    made = tokenizer(kind)
    asked, answered = (made(text)["input_ids"] for text in TEXTS)
    ids = np.array([asked + answered + asked])
    labels = np.full_like(ids, -100)
    answer = slice(len(asked), len(asked) + len(answered))
    labels[0, answer] = ids[0, answer]
    segments = np.array([[0] * (len(asked) + len(answered)) + [1] * len(asked)])
    batch: Any = {"input_ids": ids, "labels": labels, "segment_ids": segments}
    first, second = marked_text(made, batch).split("\n---\n")
    space = " " if kind == "spaces" else ""
    assert first == f"{TEXTS[0]}[[{space}{TEXTS[1]}]]"
    assert second == TEXTS[0]

"""Token ids are the same in training and serving, and exactly what the assistant says carries loss."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data import templates
from warpbeam.data.chat import ChatError, check_template, clean_messages, encode_chat, loss_mask, turn_marks
from warpbeam.data.tokenizer import train_tokenizer
from warpbeam.data.tokenizer_training import CHATML_TEMPLATE, SPECIAL_TOKENS
from warpbeam.errors import UserError

TEMPLATES = {
    "chatml": None,
    "llama3": templates.LLAMA3,
    "mistral": templates.MISTRAL,
    "qwen2": templates.QWEN2,
    "marked": templates.MARKED,
}
CHAT = [
    {"role": "user", "content": "How do I reverse a list?"},
    {"role": "assistant", "content": "Use reversed(). 🙂"},
    {"role": "user", "content": "And a string?"},
    {"role": "assistant", "content": "s[::-1]\n\nas in café"},
]


def with_template(tokenizer: Any, template: str | None) -> Any:
    changed = copy.deepcopy(tokenizer)
    if template is not None:
        changed.chat_template = template
    return changed


def said(tokenizer: Any, ids: Any, loss: Any) -> list[str]:
    """The decoded runs of loss."""
    runs, current = [], []
    for token, carries in zip([*ids, 0], [*loss, False], strict=True):
        if carries:
            current.append(int(token))
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_assistant_says_carries_loss_with_its_end_token(tokenizer: Any, name: str) -> None:
    tok = with_template(tokenizer, TEMPLATES[name])
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    runs = said(tok, ids, loss)
    assert [run.removesuffix("<|im_end|>").lstrip(" ") for run in runs] == [CHAT[1]["content"], CHAT[3]["content"]]
    assert all(run.endswith("<|im_end|>") for run in runs)


@pytest.mark.parametrize("name", TEMPLATES)
def test_training_ids_begin_with_the_ids_that_serving_sends(tokenizer: Any, name: str) -> None:
    tok = with_template(tokenizer, TEMPLATES[name])
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    assert loss is not None
    for turns in (1, 3):
        prompt, mask = encode_chat(tok, CHAT[:turns], add_generation_prompt=True)
        assert mask is None
        assert ids[: len(prompt)].tolist() == prompt.tolist()
        assert loss[len(prompt)]
        assert not loss[len(prompt) - 1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_good_templates_pass_the_check(tokenizer: Any, name: str) -> None:
    check_template(with_template(tokenizer, TEMPLATES[name]))


def test_a_prompt_that_melts_into_the_answer_is_refused() -> None:
    """The space after `assistant:` and the answer's first word share a token that the prompt alone does not have."""
    tok = train_tokenizer(["He said: Yes. "] * 20, vocab_size=300, chat_template=templates.SPACE_BEFORE_ANSWER)
    with pytest.raises(UserError, match="other token ids") as caught:
        check_template(tok)
    assert caught.value.reason == "template_prompt_tokens"


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_transformers(tokenizer: Any, name: str) -> None:
    tok = with_template(tokenizer, TEMPLATES[name])
    ids, _ = encode_chat(tok, CHAT, add_generation_prompt=False)
    assert ids.tolist() == tok.apply_chat_template(CHAT, return_dict=False)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0<>[]"), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3),
    name=st.sampled_from([name for name in TEMPLATES if name != "mistral"]),
)
def test_any_conversation(tokenizer: Any, contents: list[tuple[str, str]], name: str) -> None:
    tok = with_template(tokenizer, TEMPLATES[name])
    chat = []
    for asked, answered in contents:
        # White space at an answer's beginning may join the prompt's last token: no template leaves it there.
        chat += [{"role": "user", "content": asked.strip() or "x"}]
        chat += [{"role": "assistant", "content": answered.strip() or "y"}]
    ids, loss = encode_chat(tok, chat, add_generation_prompt=False)
    assert loss is not None
    prompt, _ = encode_chat(tok, chat[:-1], add_generation_prompt=True)
    assert ids[: len(prompt)].tolist() == prompt.tolist()
    normal = tok.backend_tokenizer.normalizer.normalize_str
    expected = [normal(turn["content"]) + "<|im_end|>" for turn in chat if turn["role"] == "assistant"]
    assert said(tok, ids, loss) == expected


def test_trimmed_offsets_make_no_difference(tokenizer: Any) -> None:
    from tokenizers import processors

    tok = with_template(tokenizer, templates.MISTRAL)
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    tok.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trimmed_ids, trimmed_loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    assert trimmed_ids.tolist() == ids.tolist()
    assert trimmed_loss.tolist() == loss.tolist()


def test_tokens_of_one_character_share_its_loss() -> None:
    starts, ends = np.array([0, 1, 1, 1, 2], np.int32), np.array([1, 2, 2, 2, 3], np.int32)
    assert loss_mask(starts, ends, [(1, 2)]).tolist() == [False, True, True, True, False]


def test_padding_that_equals_the_end_token_changes_nothing(tokenizer: Any) -> None:
    tok = with_template(tokenizer, None)
    tok.pad_token = tok.eos_token
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    ends = [i for i, token in enumerate(ids) if token == tok.eos_token_id]
    assert [bool(loss[i]) for i in ends] == [False, True, False, True]


def test_a_template_that_rewrites_earlier_turns(tokenizer: Any) -> None:
    tok = with_template(tokenizer, templates.QWEN3)
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    assert said(tok, ids, loss) == [
        "Use reversed(). 🙂<|im_end|>",
        "<think>\n\n</think>\n\ns[::-1]\n\nas in café<|im_end|>",
    ]


def test_an_end_that_only_the_last_turn_has_is_not_taken_for_an_earlier_ones(tokenizer: Any) -> None:
    tok = with_template(tokenizer, templates.END_AT_LAST)
    ids, loss = encode_chat(tok, CHAT[:2], add_generation_prompt=False)
    assert [run.lstrip() for run in said(tok, ids, loss)] == ["Use reversed(). 🙂<|im_end|>"]
    with pytest.raises(ChatError) as caught:
        encode_chat(tok, CHAT, add_generation_prompt=False)
    assert caught.value.reason == "template_not_prefix"


@pytest.mark.parametrize("template", [None, templates.MISTRAL, templates.LLAMA3])
def test_a_sentencepiece_like_tokenizer(template: str | None) -> None:
    """Spaces are part of words, bytes stand in for what is unknown, and many tokens may make one character."""
    tok = sentencepiece_like()
    tok.chat_template = template or CHATML_TEMPLATE
    ids, loss = encode_chat(tok, CHAT, add_generation_prompt=False)
    assert [run.removesuffix("<|im_end|>").strip() for run in said(tok, ids, loss)] == [
        CHAT[1]["content"],
        CHAT[3]["content"],
    ]
    for turns in (1, 3):
        prompt, _ = encode_chat(tok, CHAT[:turns], add_generation_prompt=True)
        assert ids[: len(prompt)].tolist() == prompt.tolist()


def sentencepiece_like() -> Any:
    """In the manner of Llama 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["<unk>", *SPECIAL_TOKENS]
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    texts = ["How do I reverse a list? Use reversed(). And a string? as in caf", "user assistant [INST] [/INST] ::-1 s"]
    trainer = trainers.BpeTrainer(vocab_size=450, special_tokens=[*specials, *alphabet], show_progress=False)
    backend.train_from_iterator(texts * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
    )


def test_a_conversation_that_the_assistant_opens(tokenizer: Any) -> None:
    chat = [{"role": "assistant", "content": "Hello."}, *CHAT[:2]]
    ids, loss = encode_chat(tokenizer, chat, add_generation_prompt=False)
    assert said(tokenizer, ids, loss) == ["Hello.<|im_end|>", "Use reversed(). 🙂<|im_end|>"]


@pytest.mark.parametrize("template", [None, templates.MARKED])
def test_weight_zero_takes_the_loss_of_a_turn(tokenizer: Any, template: str | None) -> None:
    tok = with_template(tokenizer, template)
    chat = [CHAT[0], {**CHAT[1], "weight": 0}, CHAT[2], {**CHAT[3], "weight": 1}]
    ids, loss = encode_chat(tok, chat, add_generation_prompt=False)
    assert said(tok, ids, loss) == [CHAT[3]["content"] + "<|im_end|>"]


def test_sharegpt_names_are_understood() -> None:
    turns = clean_messages(
        [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": "{}"},
            {"from": "observation", "value": "o"},
            {"from": "gpt", "value": "a"},
        ]
    )
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]


def test_parts_nulls_and_arguments_are_settled() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}', "extra": None}}
    turns = clean_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
            {"role": "tool", "content": "1", "tool_call_id": "7"},
        ]
    )
    assert turns == [
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "1", "tool_call_id": "7"},
    ]


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        ({"role": "narrator", "content": "x"}, "unknown_role", "turn 2 has the unknown role 'narrator'"),
        ({"content": "x"}, "unknown_role", "turn 2 has no role"),
        ({"role": "user", "content": None}, "content_not_text", "turn 2 is not text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content_not_text", "turn 2 is not text"),
        ("hello", "bad_message", "turn 2 is not a message"),
        ({"role": "assistant", "content": "x", "tool_calls": "f()"}, "bad_message", "tool_calls of turn 2"),
    ],
)
def test_a_bad_turn_is_named(message: Any, reason: str, words: str) -> None:
    with pytest.raises(ChatError) as caught:
        clean_messages([{"role": "user", "content": "q"}, message])
    assert caught.value.reason == reason
    assert words in caught.value.what


def test_a_templates_own_refusal_is_passed_on(tokenizer: Any) -> None:
    tok = with_template(tokenizer, templates.MISTRAL)
    with pytest.raises(ChatError, match="Only user and assistant roles are supported") as caught:
        encode_chat(tok, [{"role": "system", "content": "s"}, *CHAT], add_generation_prompt=True)
    assert caught.value.reason == "template_failed"


def test_a_template_that_drops_a_turn_is_refused(tokenizer: Any) -> None:
    tok = with_template(tokenizer, templates.SILENT_ON_TOOLS)
    chat = [CHAT[0], {"role": "tool", "content": "42 degrees"}, CHAT[1]]
    with pytest.raises(ChatError, match=r"leaves out turn 2 \(tool\)"):
        encode_chat(tok, chat, add_generation_prompt=False)
    call = {"function": {"name": "weather", "arguments": {}}}
    with pytest.raises(ChatError, match="the tool call weather of turn 2"):
        encode_chat(tok, [CHAT[0], {**CHAT[1], "tool_calls": [call]}], add_generation_prompt=False)
    with pytest.raises(ChatError, match="the tool weather"):
        encode_chat(tok, CHAT, add_generation_prompt=False, tools=[call])


def test_tool_calls_and_tools_in_the_own_template(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        CHAT[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12 degrees"},
        {"role": "assistant", "content": "12 degrees."},
    ]
    ids, loss = encode_chat(tokenizer, chat, add_generation_prompt=False, tools=[tool])
    assert said(tokenizer, ids, loss) == [
        '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call><|im_end|>',
        "12 degrees.<|im_end|>",
    ]
    assert tokenizer.decode(ids).count("Be brief.") == 1


def test_a_template_without_prefixes_is_refused_with_the_fix(tokenizer: Any) -> None:
    tok = with_template(tokenizer, templates.SYSTEM_LAST)
    with pytest.raises(ChatError) as caught:
        encode_chat(tok, [{"role": "system", "content": "s"}, *CHAT], add_generation_prompt=False)
    assert caught.value.reason == "template_not_prefix"
    assert "{% generation %}" in caught.value.fix


def test_no_template_is_the_users_error(tokenizer: Any) -> None:
    tok = with_template(tokenizer, None)
    tok.chat_template = None
    with pytest.raises(UserError, match="no chat template") as caught:
        encode_chat(tok, CHAT, add_generation_prompt=True)
    assert caught.value.reason == "no_chat_template"


def test_turn_marks(tokenizer: Any) -> None:
    marks = turn_marks(tokenizer)
    assert (marks.opening, marks.closing) == ("<|im_start|>assistant\n", "<|im_end|>")


def test_half_a_surrogate_pair_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ChatError) as caught:
        encode_chat(tokenizer, [{"role": "user", "content": "\ud83d"}], add_generation_prompt=True)
    assert caught.value.reason == "invalid_utf8"


def test_an_empty_conversation(tokenizer: Any) -> None:
    with pytest.raises(ChatError, match="no turns"):
        encode_chat(tokenizer, [], add_generation_prompt=True)


def test_another_tokenizer_of_the_same_texts_encodes_alike(tokenizer: Any) -> None:
    from tests.unit.data.conftest import TEXTS

    again = train_tokenizer(TEXTS * 20, vocab_size=400)
    ids, _ = encode_chat(tokenizer, CHAT, add_generation_prompt=False)
    assert encode_chat(again, CHAT, add_generation_prompt=False)[0].tolist() == ids.tolist()

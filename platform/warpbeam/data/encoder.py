"""One record to examples of at most `seq_len` tokens: tokenise, mask, apply the over-length rule."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpbeam.data.chat import TRAINING_DATE, ChatError, Ids, Mask, check_template, encode_chat, loss_mask, tokenise
from warpbeam.data.formats import Completion, Conversation, Normalised, RecordSource, Text, Tokens, normalise
from warpbeam.data.records import BadRecordError
from warpbeam.data.stats import TaskStats
from warpbeam.data.text import cut_text
from warpbeam.data.tokenizer import vocabulary_size
from warpbeam.errors import UserError

OverLength = Literal["truncate", "split", "drop", "fail"]
Render = Callable[[dict[str, Any], Any], Mapping[str, Any] | None]


class OverLengthError(Exception):
    """A record does not fit and the job says that this must not happen."""


class Encoder:
    """Records to examples of at most `seq_len` tokens, with one tokenizer and one over-length rule.

    A prompt and completion given as plain text are rendered as a user's and an assistant's turn where the tokenizer
    has a chat template; without one they are joined as they are, and the end token is added. A text is tokenised with
    the end token added (and the beginning token before it, where the tokenizer adds one by itself).

    Args:
        over_length: None: `truncate` for sft, `split` for pretrain; texts are split unless it says otherwise.
        render: code.render; decides what a record means instead of the source's format.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        seq_len: int,
        method: Literal["sft", "pretrain"] = "sft",
        over_length: OverLength | None = None,
        render: Render | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.render = render
        self._over_length: OverLength = over_length or ("truncate" if method == "sft" else "split")
        self._over_length_text: OverLength = over_length or "split"
        self._template_args = {"date_string": TRAINING_DATE}
        self._vocabulary = vocabulary_size(tokenizer)
        self._template_checked = False
        opening = tokenizer("", truncation=False, padding=False, verbose=False)["input_ids"]
        self._bos = [tokenizer.bos_token_id] if opening[:1] == [tokenizer.bos_token_id] else []

    def encode_record(
        self, value: dict[str, Any] | str, source: RecordSource, stats: TaskStats
    ) -> list[tuple[Ids, Mask]]:
        """Encode a raw record, by code.render where the job has one.

        Raises:
            BadRecordError, ChatError: it cannot be used.
            OverLengthError: it does not fit, and over_length is `fail`.
        """
        if self.render is None:
            return self.encode(normalise(value, source.format, source.fields), stats)
        rendered = self._rendered({"text": value} if isinstance(value, str) else value)
        if rendered is None:
            stats.left_out += 1
            return []
        return self.encode(rendered, stats)

    def encode(self, record: Normalised, stats: TaskStats) -> list[tuple[Ids, Mask]]:
        """Examples of a record (ids and loss mask), cut by the over-length rule; what was done is counted.

        Raises: as `encode_record`.
        """
        if isinstance(record, Text):
            if not record.text or record.text.isspace():
                stats.blank += 1
                return []
            return self._fit(*self._text(record.text), self._over_length_text, stats)
        if isinstance(record, Tokens):
            return self._fit(*self._tokens(record), self._over_length, stats)
        if isinstance(record, Completion) and not self.tokenizer.chat_template:
            return self._fit(*self._plain_completion(record), self._over_length, stats)
        return self._fit(*self._conversation(_as_conversation(record)), self._over_length, stats)

    def _rendered(self, value: dict[str, Any]) -> Normalised | None:
        assert self.render is not None
        try:
            out = self.render(value, self.tokenizer)
        except Exception as error:  # the user's own code may raise anything, about this record
            raise BadRecordError("render_failed", f"{type(error).__name__}: {error}{_raised_at(error)}") from error
        if out is None:
            return None
        if isinstance(out, Mapping):
            if out.get("messages") is not None:
                return normalise({**out}, "messages", {})
            ids, mask = out.get("input_ids"), out.get("loss_mask")
            if ids is not None:
                return Tokens(_listed(ids), None if mask is None else _listed(mask))
        got = f"keys {', '.join(map(str, out))}" if isinstance(out, Mapping) else type(out).__name__
        raise BadRecordError(
            "render_failed", f"it must return messages, or input_ids and loss_mask, or None; got {got}"
        )

    def _check_template(self) -> None:
        """A template that is wrong for every conversation is the job's mistake, not the first record's."""
        if not self._template_checked:
            try:
                check_template(self.tokenizer)
            except ChatError as error:
                if error.reason != "template_failed":  # it may want a system turn, which the records have
                    raise UserError(error.what, why=error.why, fix=error.fix, reason=error.reason) from error
            self._template_checked = True

    def _conversation(self, chat: Conversation) -> tuple[Ids, Mask]:
        self._check_template()
        ids, loss = encode_chat(
            self.tokenizer, chat.messages, add_generation_prompt=False, tools=chat.tools, **self._template_args
        )
        assert loss is not None
        if not loss[1:].any():
            raise BadRecordError("no_loss", "no assistant turn that carries loss, so there is nothing to learn from")
        return ids, loss

    def _plain_completion(self, record: Completion) -> tuple[Ids, Mask]:
        prompt = f"{record.system}\n\n{record.prompt}" if record.system else record.prompt
        ids, starts, ends = tokenise(self.tokenizer, prompt + record.completion)
        loss = loss_mask(starts, ends, [(len(prompt), len(prompt) + len(record.completion))])
        head, tail = self._bos, [self._end_id()]
        return (
            np.concatenate([np.asarray(head, np.int32), ids, np.asarray(tail, np.int32)]),
            np.concatenate([np.zeros(len(head), np.bool_), loss, np.ones(1, np.bool_)]),
        )

    def _text(self, text: str) -> tuple[Ids, Mask]:
        pieces = [np.asarray(self._bos, np.int32)]
        for piece in cut_text(text):
            # Without offsets, and without what transformers adds: twice as fast.
            (encoded,) = self.tokenizer.backend_tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            pieces.append(np.asarray(encoded.ids, np.int32))
        ids = np.concatenate([*pieces, np.asarray([self._end_id()], np.int32)])
        return ids, np.ones(len(ids), np.bool_)

    def _tokens(self, record: Tokens) -> tuple[Ids, Mask]:
        try:
            ids = np.asarray(record.input_ids)
            loss = np.ones(len(ids), np.bool_) if record.loss_mask is None else np.asarray(record.loss_mask)
        except ValueError as error:
            raise BadRecordError("bad_tokens", f"{error}") from error
        if not len(ids):
            raise BadRecordError("no_loss", "input_ids is empty")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise BadRecordError("bad_tokens", "input_ids must be a list of whole numbers")
        if loss.shape != ids.shape or not np.isin(loss, (0, 1)).all():
            raise BadRecordError("bad_tokens", f"loss_mask must be {len(ids)} times 0 or 1, one for each of input_ids")
        wrong = ids[(ids < 0) | (ids >= self._vocabulary)]
        if len(wrong):
            raise BadRecordError("bad_tokens", f"id {wrong[0]} is outside the vocabulary of {self._vocabulary}")
        return ids.astype(np.int32), loss.astype(np.bool_)

    def _end_id(self) -> int:
        end = self.tokenizer.eos_token_id
        if end is None:
            raise UserError(
                "the tokenizer has no end token, so nothing could end a text",
                fix="set eos_token in its tokenizer_config.json",
                reason="no_eos_token",
            )
        return int(end)

    def _fit(self, ids: Ids, loss: Mask, rule: OverLength, stats: TaskStats) -> list[tuple[Ids, Mask]]:
        """Apply the over-length rule; the first token of each example carries no loss."""
        if len(ids) <= self.seq_len:
            pieces = [(ids, loss)]
        elif rule == "fail":
            raise OverLengthError(f"{len(ids)} tokens do not fit seq_len {self.seq_len}")
        elif rule == "drop":
            stats.dropped += 1
            return []
        elif rule == "truncate":
            end = _last_whole_turn(loss, self.seq_len)
            if not end:
                raise BadRecordError(
                    "over_length", f"{len(ids)} tokens, and no whole assistant turn fits seq_len {self.seq_len}"
                )
            pieces = [(ids[:end], loss[:end])]
            stats.truncated += 1
        else:
            starts = range(0, len(ids), self.seq_len)
            pieces = [(ids[at : at + self.seq_len], loss[at : at + self.seq_len]) for at in starts]
            stats.split += 1
        kept = []
        for piece_ids, piece_loss in pieces:
            piece_loss = piece_loss.copy()
            piece_loss[0] = False
            if piece_loss.any():
                kept.append((piece_ids, piece_loss))
        if not kept:
            raise BadRecordError("no_loss", "no token of it carries loss")
        stats.remainders += len(pieces) - len(kept)
        return kept


def _listed(values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError as error:
        raise BadRecordError("render_failed", f"input_ids and loss_mask must be lists: {error}") from error


def _raised_at(error: Exception) -> str:
    """The line of the user's code behind an error, for a message."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _as_conversation(record: Conversation | Completion) -> Conversation:
    if isinstance(record, Conversation):
        return record
    turns = [{"role": "system", "content": record.system}] if record.system else []
    turns += [{"role": "user", "content": record.prompt}, {"role": "assistant", "content": record.completion}]
    return Conversation(turns)


def _last_whole_turn(loss: Mask, seq_len: int) -> int:
    """Tokens up to the end of the last run of loss that fits; where everything carries loss, as many as fit."""
    if loss[1:].all():
        return seq_len
    ends = np.flatnonzero(loss[:seq_len] & ~loss[1 : seq_len + 1]) + 1
    return int(ends[-1]) if len(ends) else 0

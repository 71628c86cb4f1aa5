"""A look at somebody's data before there is a job file: what is in it, and what to write.

`warpbeam init mine --data PATH` turns a DataReport into a job file; nothing is decided here that the user could not
write differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from warpbeam.data.formats import Completion, Normalised, Text, Tokens, normalise
from warpbeam.data.guess import guess_format
from warpbeam.data.messages import ChatError, clean_messages
from warpbeam.data.records import BadRecord, BadRecordError, RawRecord, read_records
from warpbeam.data.sample import spread, texts_of
from warpbeam.data.sources import Expansion, cut_tasks, expand
from warpbeam.data.stats import KEPT_PLACES, BadPlace, describe_places
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

LOOKED_AT = 2000
LOOKED_AT_TASKS = 16
LOOKED_AT_CHARS = 64 << 20
"""Records are kept while they are looked at; no more of them than this."""
CHARS_PER_TOKEN = 3.6
"""A cautious estimate for English and code with a vocabulary of tens of thousands."""
TOKENS_PER_TURN = 5
"""What a chat template adds to each turn."""
MIN_SEQ_LEN, MAX_SEQ_LEN = 128, 8192
TEXT_ROWS = 64
"""A small collection of texts is cut into about this many rows at least."""
FITTING_SHARE = 0.99
"""seq_len is the power of two that holds this share of the examples."""


@dataclass(frozen=True)
class DataReport:
    """What was found in a data source, and what to write about it."""

    path: str
    expansion: Expansion
    bytes: int
    """Of all files, as stored."""
    records: int
    """Looked at, not in all."""
    bad: dict[str, int]
    """Reason -> records, of those looked at."""
    bad_places: tuple[str, ...]
    """The first of them: `file:line: reason: detail`."""
    format: str
    other_formats: tuple[str, ...]
    """What it could be read as besides."""
    fields: dict[str, str]
    """Renames to write beside `path:`; empty when the names are the format's own."""
    columns: tuple[str, ...]
    method: Literal["sft", "pretrain"]
    lengths: tuple[int, ...]
    """Tokens of each record looked at, ascending."""
    exact: bool
    """Lengths by a tokenizer, not estimated from characters."""
    seq_len: int
    """The power of two that holds nearly all examples."""
    histogram: tuple[tuple[int, int], ...]
    """(tokens, records with at most as many but more than the bin before), in powers of two."""

    def percentile(self, share: float) -> int:
        """Tokens that this share of the records does not exceed."""
        return _percentile(self.lengths, share)

    @property
    def longer(self) -> int:
        """Records looked at that are longer than `seq_len`."""
        return sum(length > self.seq_len for length in self.lengths)


def inspect_data(
    path: str,
    root: Path,
    config: StorageConfig | None,
    *,
    tokenizer: Any = None,
    limit: int = LOOKED_AT,
) -> DataReport:
    """Look at up to `limit` records spread over the files that `path` names.

    Args:
        tokenizer: for exact lengths (of the text; a chat template's own tokens are estimated).

    Raises:
        UserError: nothing is there, nothing can be read, or no format fits.
    """
    expansion = expand(path, root, config)
    values, bad, places = _look(expansion, config, limit)
    described = tuple(describe_places(places, config))
    if not values:
        raise UserError(
            f"no records: nothing readable in {path}",
            why=described[0] if described else "the files hold only blank lines",
            reason="no_records",
        )
    format_name, others, fields = guess_format([value for value, _ in values])
    records = len(values) + sum(bad.values())  # misfits are among the values
    lengths, misfits = _measure(values, format_name, fields, tokenizer)
    bad.update(place.reason for place in misfits)
    described += tuple(describe_places(misfits[: KEPT_PLACES - len(described)], config))
    if not lengths:
        raise UserError(f"no record of {path} fits format {format_name}", why=described[0], reason="unknown_format")
    return DataReport(
        path=path,
        expansion=expansion,
        bytes=sum(file.size for file in expansion.files),
        records=records,
        bad=dict(bad),
        bad_places=described,
        format=format_name,
        other_formats=others,
        fields=fields,
        columns=tuple(dict.fromkeys(key for value, _ in values if isinstance(value, dict) for key in value)),
        method="pretrain" if format_name == "text" else "sft",
        lengths=tuple(lengths),
        exact=tokenizer is not None,
        seq_len=proposed_seq_len(lengths, format_name),
        histogram=_histogram(lengths),
    )


def _measure(
    values: Sequence[tuple[dict[str, Any] | str, BadPlace]], format_name: str, fields: dict[str, str], tokenizer: Any
) -> tuple[list[int], list[BadPlace]]:
    """Lengths in tokens, ascending, and the places of the records that do not have the format."""
    lengths: list[int] = []
    misfits: list[BadPlace] = []
    for value, place in values:
        try:
            lengths.append(_length(normalise(value, format_name, fields), tokenizer))
        except BadRecordError as error:
            misfits.append(place._replace(reason=error.reason, detail=error.detail))
        except ChatError as error:
            misfits.append(place._replace(reason=error.reason, detail=error.what))
    return sorted(lengths), misfits


def proposed_seq_len(lengths: Sequence[int], format_name: str) -> int:
    """The power of two, within limits, that holds nearly all examples.

    Texts are split, so they get a usual one, or less where that would make a handful of rows.
    """
    if format_name == "text":
        usual = 1024 if sum(lengths) < 1 << 20 else 2048
        return min(max(_power_of_two(sum(lengths) // TEXT_ROWS), MIN_SEQ_LEN), usual)
    return min(max(_power_of_two(_percentile(sorted(lengths), FITTING_SHARE)), MIN_SEQ_LEN), MAX_SEQ_LEN)


def _look(
    expansion: Expansion, config: StorageConfig | None, limit: int
) -> tuple[list[tuple[dict[str, Any] | str, BadPlace]], Counter[str], list[BadPlace]]:
    """Records with their places, bad ones by reason, and the places of the first of these."""
    values: list[tuple[dict[str, Any] | str, BadPlace]] = []
    bad: Counter[str] = Counter()
    places: list[BadPlace] = []
    tasks = spread(cut_tasks(expansion.files, config=config), LOOKED_AT_TASKS)
    chars_left = LOOKED_AT_CHARS
    for number, task in enumerate(tasks):
        quota = max(1, (limit - len(values)) // (len(tasks) - number))
        for record in read_records(task, config):
            if isinstance(record, RawRecord):
                values.append((record.value, BadPlace(task.file, record.offset, "", "")))
                quota -= 1
                chars_left -= sum(map(len, texts_of(record.value)))
            elif isinstance(record, BadRecord):
                bad[record.reason] += 1
                if len(places) < KEPT_PLACES:
                    places.append(BadPlace(task.file, record.offset, record.reason, record.detail))
            if quota <= 0 or chars_left <= 0 or sum(bad.values()) >= limit:
                break
    return values, bad, places


def _length(record: Normalised, tokenizer: Any) -> int:
    """Tokens, by the tokenizer or estimated from the characters."""
    if isinstance(record, Tokens):
        return len(record.input_ids)
    if isinstance(record, Text):
        texts, turns = [record.text], 0
    elif isinstance(record, Completion):
        texts, turns = [record.prompt, record.completion, record.system or ""], 2
    else:
        cleaned = clean_messages(record.messages)
        if not any(turn["role"] == "assistant" for turn in cleaned):
            raise BadRecordError("no_loss", "no assistant turn")
        texts, turns = [turn["content"] for turn in cleaned], len(cleaned)
    if tokenizer is None:
        # Characters outside Latin scripts are nearer to a token each.
        tokens = sum(len(text.encode("utf-8", "replace")) for text in texts) / CHARS_PER_TOKEN
    else:
        tokens = sum(len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts)
    return max(1, round(tokens)) + turns * TOKENS_PER_TURN


def _percentile(ascending: Sequence[int], share: float) -> int:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def _power_of_two(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


def _histogram(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(map(_power_of_two, lengths)).items()))

"""The error for records that cannot be used, in the same words wherever they are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpbeam.data.stats import KEPT_PLACES, TaskStats, describe_places
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

_ADVICE = {
    "over_length": "raise data.seq_len, set over_length: drop",
    "render_failed": "mend the function that code.render names",
    "missing_field": "see whether format: and fields: are right for this data, mend or remove the records",
}
"""By the first reason; for the others the record itself is wrong."""


def bad_records_error(stats: TaskStats, config: StorageConfig | None) -> UserError:
    """Names the first bad records of a task by file and line.

    Args:
        stats: of the task; not complete where it was left at a bad record.
    """
    places = describe_places(stats.places[:KEPT_PLACES], config)
    count = sum(stats.bad.values())
    return UserError(
        "\n".join(["bad records in the data:", *(f"  {place}" for place in places)]),
        why=f"data.on_bad_record is fail; {count} bad in the {stats.records} records looked at there",
        fix=_ADVICE.get(next(iter(stats.bad)), "mend or remove them") + ", or set on_bad_record: skip under data:",
        reason="bad_records",
    )

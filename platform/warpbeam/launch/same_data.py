"""Whether a run's name still stands for the same data: a path in the job file does not say what is in it.

A run that goes on must go on with the batches it began with, so other data is refused. Of a finished run it is only
told: the job is the same, and what was trained stays what it was.
"""

from __future__ import annotations

from pathlib import Path

from warpbeam.data.index import SOURCES, Sources
from warpbeam.data.sources import expand
from warpbeam.errors import UserError, WarpbeamError
from warpbeam.job import Job
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig


def check_same_data(view: RunView, train_prefix: str) -> None:
    """Refuse to go on from a checkpoint with data that is not what it was trained on.

    Args:
        train_prefix: of the data as it would be prepared now.

    Raises:
        UserError: an earlier attempt has committed steps on another data set.
    """
    before = view.data_prefix()
    if before is None or before == train_prefix or view.log.newest_commit() is None:
        return
    raise UserError(
        f"the training data of run {view.run!r} has changed since its checkpoint",
        why=f"its steps so far were trained on {before}, the data as it is now is {train_prefix}",
        fix="put the old data back to resume, or `--fresh` to train anew under the next free name",
        reason="data_changed",
    )


def changed_files(view: RunView, job: Job, root: Path, config: StorageConfig) -> list[str]:
    """The training files that a run was made of and that are gone, new, or of another size or time now.

    Names only; empty where that cannot be found out.
    """
    prefix = view.data_prefix()
    if prefix is None:
        return []
    try:
        stored = Sources.from_json(view.store.get(f"{prefix}/{SOURCES}"))
        before = {file.uri: (file.size, file.stamp) for source in stored.sources for file in source.files}
        now = {
            file.uri: (file.size, file.stamp)
            for source in job.data.train
            for file in expand(source.path, root, config).files
        }
    except WarpbeamError:  # cleaned up or moved: nobody can say
        return []
    return sorted(uri for uri in before.keys() | now.keys() if before.get(uri) != now.get(uri))

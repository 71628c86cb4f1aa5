"""Which checkpoints to give up, and giving them up in an order that no crash can turn into a loss.

The newest and the best always survive, also with `keep: 1`, and so do those at multiples of `keep_every`. A deletion is
logged before the first object goes, so a reader never finds a committed checkpoint half gone; the new commit is in the
log before anything old is given up, so there is no instant without one. Objects that a crash left behind are swept by
the next attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpbeam.checkpoint.log import Claim, Entry, live_commits
from warpbeam.storage import layout

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

UNCOMMITTED_TTL_S = 3600.0


def best_commit(commits: list[Entry]) -> Entry | None:
    """The commit with the lowest held-out loss; among equals the earlier step. None when none was evaluated."""
    evaluated = [commit for commit in commits if commit.extra.get("eval_loss") is not None]
    return min(evaluated, key=lambda commit: (commit.extra["eval_loss"], commit.step, commit.seq), default=None)


def decide(commits: list[Entry], keep: int, keep_every: int | None = None) -> list[Entry]:
    """Of live commits in log order, those to give up: all but the newest `keep`, the best, and each `keep_every`th."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    best = best_commit(commits)
    old = [commit for commit in commits[:-keep] if commit is not best]
    return [commit for commit in old if keep_every is None or (commit.step or 0) % keep_every]


def retain(store: ObjectStore, claim: Claim, keep: int, keep_every: int | None = None) -> list[Entry]:
    """Give up what `decide` says; call it on rank 0 after a commit. Returns what was given up.

    Raises:
        Fenced: another attempt has claimed the run; nothing was removed.
    """
    given_up = decide(live_commits(claim.log.read()), keep, keep_every)
    for commit in given_up:
        claim.delete(commit)
        _remove(store, _folder(commit))
    return given_up


def sweep(store: ObjectStore, claim: Claim, *, ttl_s: float = UNCOMMITTED_TTL_S) -> list[str]:
    """Remove what crashes left: objects already given up, and other attempts' uncommitted ones of `ttl_s` and more.

    Call it once at the start of an attempt, which holds the newest claim: all others are fenced, dead or not. Writes
    that they left unfinished are therefore discarded at once where they belong to a checkpoint, which could not be
    committed any more; those of other keys after `ttl_s`, since commands may write there without a claim.

    Returns the folders that were removed, and the keys of the unfinished writes.

    Raises:
        Fenced: another attempt has claimed the run; nothing was removed.
    """
    entries = claim.log.read()
    claim.check()
    live = {_folder(commit) for commit in live_commits(entries)}
    deleted = {_folder(entry) for entry in entries if entry.kind == "delete"}
    root = layout.checkpoints_prefix(claim.log.team, claim.log.run)
    removed = []
    for step in store.list_dirs(root):
        for attempt in store.list_dirs(f"{root}/{step}"):
            folder = f"{root}/{step}/{attempt}"
            if folder in live or (_is_of(claim, attempt) and folder not in deleted):
                continue
            youngest_s = min((info.age_s for info in store.list(folder + "/")), default=0.0)
            if folder in deleted or youngest_s >= ttl_s:
                _remove(store, folder)
                removed.append(folder)
    return removed + _discard_unfinished(store, claim, ttl_s)


def _discard_unfinished(store: ObjectStore, claim: Claim, ttl_s: float) -> list[str]:
    team, run = claim.log.team, claim.log.run
    root = f"{layout.checkpoints_prefix(team, run)}/"
    found = list(store.unfinished(layout.run_prefix(team, run)))
    claim.check()  # after the look: whatever is in it of an attempt that is newer than ours came after its claim
    discarded = []
    for left in found:
        step_attempt_file = left.key.removeprefix(root).split("/", 2) if left.key.startswith(root) else []
        dead = len(step_attempt_file) == 3 and not _is_of(claim, step_attempt_file[1])
        if dead or (not step_attempt_file and left.age_s >= ttl_s):
            store.discard(left)
            discarded.append(left.key)
    return discarded


def _is_of(claim: Claim, folder: str) -> bool:
    """Whether a checkpoint's folder, named after its attempt, is this attempt's; it may have saved a step twice."""
    return folder == claim.attempt or folder.startswith(f"{claim.attempt}.")


def _folder(entry: Entry) -> str:
    return (entry.manifest or "").rpartition("/")[0]


def _remove(store: ObjectStore, folder: str) -> None:
    for info in list(store.list(folder + "/")):
        store.delete(info.key)

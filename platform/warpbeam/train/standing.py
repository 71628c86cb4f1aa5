"""What can be expected of a rank whose attempt has failed. Known to whoever ends it, so without torch."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Stage(StrEnum):
    """Whether this rank may save the state alone (`train.survivor`)."""

    UNABLE = "unable"
    TRAINING = "training"
    SAVING = "saving"
    SAVED = "saved"


class Standing(NamedTuple):
    """A rank's stage, and in how many seconds a rank that trains notices that another one has died."""

    stage: Stage = Stage.UNABLE
    notices_in_s: float = 0.0


_standing = Standing()


def say(stage: Stage, notices_in_s: float = 0.0) -> None:
    """This process's standing from here on."""
    global _standing
    _standing = Standing(stage, notices_in_s)


def standing() -> Standing:
    """Where this process stands."""
    return _standing

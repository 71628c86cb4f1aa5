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


class Prospect(NamedTuple):
    """A rank's stage, and in how many seconds a rank that trains notices that another one has died."""

    stage: Stage = Stage.UNABLE
    notices_in_s: float = 0.0


_prospect = Prospect()


def say(stage: Stage, notices_in_s: float = 0.0) -> None:
    """This process's prospect from here on."""
    global _prospect
    _prospect = Prospect(stage, notices_in_s)


def prospect() -> Prospect:
    """What whoever is about to end this process may expect of it."""
    return _prospect

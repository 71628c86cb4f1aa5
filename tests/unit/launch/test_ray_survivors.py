"""How long the ranks of a failed group may live on."""

from __future__ import annotations

import pytest

from warpbeam.launch.ray_survivors import SAVE_S, patience_s
from warpbeam.train.survival import Prospect, Stage

SAVED = Prospect(Stage.SAVED)
SAVING = Prospect(Stage.SAVING)
TRAINING = Prospect(Stage.TRAINING, 4.0)
ON_NCCL = Prospect(Stage.TRAINING)
UNABLE = Prospect()


@pytest.mark.parametrize(
    ("ranks", "died", "seconds"),
    [
        ([], True, 0.0),
        ([UNABLE, UNABLE], True, 0.0),
        ([TRAINING, UNABLE], True, 4.0),  # it may not have come to its next collective
        ([TRAINING], False, 0.0),  # the one that failed has had its say, the other waits for it for ever
        ([ON_NCCL], True, 0.0),
        ([TRAINING, SAVING], True, SAVE_S),
        ([SAVING], False, SAVE_S),
        ([SAVED, TRAINING, SAVING], True, 0.0),
    ],
)
def test_patience(ranks: list[Prospect], died: bool, seconds: float) -> None:
    assert patience_s(ranks, died) == seconds

"""Which faults, in which order: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import Final, Literal, get_args

from tests.integration.chaos.proxy import Moment, Side

Kind = Literal["rank", "raylet", "driver", "head", "server", "network"]
ENDS_RANKS: Final = ("rank", "raylet", "driver", "head")
MOMENTS: Final = (None, *get_args(Moment))
LONGEST_OUTAGE_S: Final = 12.0


@dataclass(frozen=True)
class Fault:
    """One thing to break.

    Args:
        moment: the step of the protocol in which it happens; None: `after_s` seconds from when the run trains.
        side: before the server has that request, or after it has done it and before the client knows.
        outage_s: how long what can come back stays away (S3 server, network).
        rank: which one dies.
    """

    kind: Kind
    moment: Moment | None
    side: Side
    after_s: float
    outage_s: float
    rank: int

    def __str__(self) -> str:
        where = f"at {self.moment} ({self.side})" if self.moment else f"after {self.after_s:.1f} s"
        return f"{self.kind} {where}"


def schedule(count: int, seed: int, kinds: Sequence[Kind] = get_args(Kind)) -> list[Fault]:
    """`count` faults in which every kind meets every moment as evenly as the number allows."""
    chance = random.Random(seed)
    pairs = list(product(kinds, MOMENTS))
    chance.shuffle(pairs)
    return [
        Fault(
            kind=kind,
            moment=moment,
            side=chance.choice(get_args(Side)),
            after_s=chance.uniform(0, 4),
            outage_s=chance.uniform(0.5, LONGEST_OUTAGE_S),
            rank=chance.randrange(2),
        )
        for kind, moment in islice(cycle(pairs), count)
    ]

"""What befalls a run, drawn from a seed: who is killed or frozen, and at which kind of moment.

The seed fixes what is done and in which order, but not when exactly: that is left to the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto


class Moment(Enum):
    """What a blow waits for."""

    TRAINING = auto()
    """A step that no rank had begun at the blow before."""
    REFORMING = auto()
    """Nothing: ranks of the blow before may not be back, and the group not whole."""
    SAVING = auto()
    """A checkpoint that is begun and not complete."""


class Deed(Enum):
    """What is done to each victim."""

    KILL = auto()
    FREEZE = auto()
    """SIGSTOP, for others to notice."""
    PAUSE = auto()
    """SIGSTOP, and SIGCONT a while later: it may have been given up meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Blow:
    moment: Moment
    deed: Deed
    victims: tuple[int, ...]
    """Ranks."""
    delay_seconds: float
    """After the moment has come."""
    pause_seconds: float


def blows(seed: int, *, ranks: int) -> Iterator[Blow]:
    """As many as are wanted."""
    dice = random.Random(seed)
    while True:
        (moment,) = dice.choices(list(Moment), [5, 4, 1])
        (deed,) = dice.choices(list(Deed), [30, 1, 1])
        (count,) = dice.choices([1, 2], [3, 1])
        victims = dice.sample(range(ranks), count)
        if moment is Moment.SAVING and 0 not in victims:
            victims[0] = 0  # the rank that saves
        yield Blow(
            moment=moment,
            deed=deed,
            victims=tuple(victims),
            delay_seconds={
                Moment.TRAINING: dice.uniform(0, 0.1),
                Moment.REFORMING: dice.uniform(0, 0.8),
                Moment.SAVING: 0.0,
            }[moment],
            pause_seconds=dice.uniform(0, 4),
        )

"""Random faults of a run: the ranks that are killed or frozen, and the kind of moment.

A seed gives the same faults in the same order. The exact times depend on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto


class Moment(Enum):
    """The moment that a blow waits for."""

    TRAINING = auto()
    """A step after those that ranks had begun at the last blow."""
    REFORMING = auto()
    """No wait: ranks of the last blow may be missing, and the group incomplete."""
    SAVING = auto()
    """A checkpoint that is not complete."""


class Action(Enum):
    """The action on each victim."""

    KILL = auto()
    FREEZE = auto()
    """SIGSTOP; other ranks must notice it."""
    PAUSE = auto()
    """SIGSTOP, then SIGCONT: the rank may have been replaced meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Blow:
    moment: Moment
    action: Action
    victims: tuple[int, ...]
    """Ranks."""
    delay_seconds: float
    """The delay after the moment."""
    pause_seconds: float


def blows(seed: int, *, ranks: int) -> Iterator[Blow]:
    """Draw blows without end."""
    dice = random.Random(seed)
    while True:
        (moment,) = dice.choices(list(Moment), [5, 4, 1])
        (action,) = dice.choices(list(Action), [30, 1, 1])
        (count,) = dice.choices([1, 2], [3, 1])
        victims = dice.sample(range(ranks), count)
        if moment is Moment.SAVING and 0 not in victims:
            victims[0] = 0  # the rank that saves
        yield Blow(
            moment=moment,
            action=action,
            victims=tuple(victims),
            delay_seconds={
                Moment.TRAINING: dice.uniform(0, 0.1),
                Moment.REFORMING: dice.uniform(0, 0.8),
                Moment.SAVING: 0.0,
            }[moment],
            pause_seconds=dice.uniform(0, 4),
        )

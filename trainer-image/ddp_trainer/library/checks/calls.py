"""Compares what the ranks call between epochs.

The numbers of different calls would be added up, or meet in collectives of different sizes.
"""

from __future__ import annotations

from enum import IntEnum

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import ConfigurationError


class Call(IntEnum):
    """A method that needs numbers of all ranks."""

    EPOCHS = 1
    SUM = 2
    SHARE = 3

    def __str__(self) -> str:
        return f"job.{self.name.lower()}()"


def check_call(call: Call, values: int, group: Group) -> None:
    """Check that all ranks call the same method with as many values; a collective.

    Raises:
        ConfigurationError: they do not.
    """
    (least, greatest), (fewest, most) = group.bounds(call, values)
    if least < greatest:
        raise ConfigurationError(
            f"some ranks called {Call(least)}, others {Call(greatest)}: all ranks must make the "
            "same calls in the same order, so move them out of `if job.is_main:` and the like"
        )
    if fewest < most:
        raise ConfigurationError(
            f"the values given to {call} are {fewest} on some ranks, {most} on others: give it "
            "as many on all ranks, 0.0 where a rank has none"
        )

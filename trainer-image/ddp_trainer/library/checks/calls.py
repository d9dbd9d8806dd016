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
    EVALUATED = 4

    def __str__(self) -> str:
        return f"job.{self.name.lower()}()"


def check_call(call: Call, values: int, data: int, group: Group) -> None:
    """Check that all ranks call the same method with as many values; a collective.

    `data`: fingerprint of the data that they share; 0: none.

    Raises:
        ConfigurationError: they do not.
    """
    (least, greatest), (fewest, most), (first, last) = group.bounds(call, values, data)
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
    if first != last:
        raise ConfigurationError(
            f"{call} got different data on different ranks: it divides them, so give it all of "
            "them on all ranks, split after torch.manual_seed() with one number"
        )

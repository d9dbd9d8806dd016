"""Decides whether all ranks skip a step, because a loss of one of them is NaN or infinite.

Such a loss makes the averaged gradients NaN, and then the weights of all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import NonFiniteLossError
from ddp_trainer.library.checks.loss_watch import NonFinite, gathered

_MOST_LINES = 8
"""Log lines of a step, which may be bad on thousands of ranks."""

_logger = logging.getLogger(__name__)


def of_all_ranks(own: NonFinite | None, group: Group) -> list[NonFinite]:
    """Return the losses of a step that are not finite, by rank; a collective.

    `own`: this rank's.

    Raises:
        Exception: the group broke.
    """
    [ranks] = group.sum(own is not None)
    return gathered(own, group) if ranks else []


def must_skip(found: Sequence[NonFinite], *, in_a_row: int, most: int, logs: bool) -> bool:
    """Return whether all ranks skip a step with these losses that are not finite.

    `in_a_row`: steps skipped just before this one, at most `most`. `logs`: this rank logs them.

    Raises:
        NonFiniteLossError: no more steps may be skipped.
    """
    if not found:
        return False
    if in_a_row >= most:
        raise NonFiniteLossError(after_too_many(found[0], in_a_row))
    if logs:
        for each in found[:_MOST_LINES]:
            _logger.warning("%s", in_words(each))
        if len(found) > _MOST_LINES:
            _logger.warning("so are the losses of %d other ranks", len(found) - _MOST_LINES)
    return True


def in_words(found: NonFinite) -> str:
    """Return the message that a step is skipped."""
    what = f"the loss of rank {found.rank} is {found.loss}, samples {found.shown}"
    return f"step {found.step} is skipped: {what}"


def after_too_many(found: NonFinite, in_a_row: int) -> str:
    """Return the message that a step cannot be skipped."""
    what = f"rank {found.rank}'s loss is {found.loss} in step {found.step}"
    return f"{what} after {in_a_row} skipped steps: samples {found.shown}"

"""Limits how often a group forms again without progress."""

from __future__ import annotations

import logging

from ddp_trainer.exit_codes import LostPeerError

_logger = logging.getLogger(__name__)


class ReformLimit:
    """The number of times that a group may break in a row without progress."""

    def __init__(self, max_reforms: int) -> None:
        self._max_reforms = max_reforms
        self._step = 0
        self._in_a_row = 0

    def count(self, *, step: int, reason: str) -> None:
        """Count a group that broke after `step` complete steps.

        Raises:
            LostPeerError: the limit is exceeded.
        """
        if step > self._step:
            self._step, self._in_a_row = step, 0
        if self._in_a_row >= self._max_reforms:
            raise LostPeerError(
                f"gave up after {self._in_a_row} re-forms in a row without progress: {reason} "
                "(--max-reforms sets how many)"
            )
        self._in_a_row += 1
        _logger.info(
            "the group broke at step %d (%s): forming it again from memory, "
            "attempt %d of at most %d without progress",
            step,
            reason,
            self._in_a_row,
            self._max_reforms,
        )

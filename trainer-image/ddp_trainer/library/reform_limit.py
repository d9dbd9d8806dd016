"""When it is no use any more to form a group anew."""

from __future__ import annotations

import logging

from ddp_trainer.exit_codes import LostPeerError

_logger = logging.getLogger(__name__)


class ReformLimit:
    """How often a group may break before it is no use to form it again."""

    def __init__(self, max_reforms: int) -> None:
        self._max_reforms = max_reforms
        self._step = 0
        self._in_a_row = 0

    def count(self, *, step: int, reason: str) -> None:
        """Another group broke, with so many steps complete.

        Raises:
            LostPeerError: that was one too many.
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
            "the group broke at step %d (%s): forming it anew from memory, "
            "%d of at most %d times without progress",
            step,
            reason,
            self._in_a_row,
            self._max_reforms,
        )

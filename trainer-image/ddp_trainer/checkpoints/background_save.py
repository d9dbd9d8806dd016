"""A save that runs beside the training, in its own thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ddp_trainer.checkpoints.checkpoint import Checkpoint
from ddp_trainer.checkpoints.storage import CancelledError, Transfer
from ddp_trainer.system.threads import start_thread

_logger = logging.getLogger(__name__)


class BackgroundSave:
    """A save in progress. Its result is logged as soon as it ends."""

    def __init__(
        self, save: Callable[[Transfer], Checkpoint], *, step: int, size_bytes: int
    ) -> None:
        """Begin the save. `size_bytes`: size of the state, which is written and then read back."""
        self.step = step
        self.begin = time.monotonic()
        self.failure: Exception | None = None
        """The error, if the save has ended with one."""
        self._save = save
        self._transfer = Transfer(2 * size_bytes)
        self._thread = start_thread(f"ddp: saves step {step}", self._run)

    @property
    def fraction(self) -> float:
        """Return the progress, from 0 to 1."""
        return self._transfer.fraction

    def ended(self, *, within_seconds: float = 0.0) -> bool:
        """Return whether the save has ended or ends within the time."""
        self._thread.join(within_seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel the save; it removes its files as soon as the disk allows."""
        self._transfer.cancel()

    def should_be_overtaken(self, *, seconds_left: float) -> bool:
        """Return whether to cancel it for a newer state of the same size."""
        return is_worth_overtaking(
            self._transfer.fraction,
            elapsed_seconds=time.monotonic() - self.begin,
            seconds_left=seconds_left,
        )

    def _run(self) -> None:
        try:
            saved = self._save(self._transfer)
        except CancelledError as error:
            self.failure = error
        except Exception as error:
            self.failure = error
            _logger.error(
                "saving the checkpoint of step %d failed (%s)",
                self.step,
                error,
                exc_info=None if isinstance(error, OSError) else error,
            )
        else:
            seconds = time.monotonic() - self.begin
            _logger.info("saved checkpoint %s in %.2f s", saved, seconds)


def is_worth_overtaking(fraction: float, *, elapsed_seconds: float, seconds_left: float) -> bool:
    """Return whether to cancel a save that is done to `fraction` for another of the same size.

    Cancel it only if there is time for the other one but not for both. A save that has written
    nothing yet is always cancelled.
    """
    if fraction <= 0.0:
        return True
    whole = elapsed_seconds / fraction
    return whole <= seconds_left < whole - elapsed_seconds + whole

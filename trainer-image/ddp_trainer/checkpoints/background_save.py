"""One save that runs beside the training, in a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ddp_trainer.checkpoints.checkpoint import Checkpoint
from ddp_trainer.checkpoints.storage import CancelledError, Transfer
from ddp_trainer.system.threads import start_thread

_logger = logging.getLogger(__name__)


class BackgroundSave:
    """A save under way. How it ended is logged at once, whoever asks for it later."""

    def __init__(
        self, save: Callable[[Transfer], Checkpoint], *, step: int, size_bytes: int
    ) -> None:
        """Begin it. `size_bytes` of the state: written, then read back."""
        self.step = step
        self.begin = time.monotonic()
        self.failure: Exception | None = None
        """Why it failed, once it has ended."""
        self._save = save
        self._transfer = Transfer(2 * size_bytes)
        self._thread = start_thread(f"save-{step}", self._run)

    @property
    def fraction(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self._transfer.fraction

    def ended(self, *, within_seconds: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        self._thread.join(within_seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Give it up; it takes away what it has written as soon as the disk lets it."""
        self._transfer.cancel()

    def should_be_overtaken(self, *, seconds_left: float) -> bool:
        """Whether to give it up for the sake of a newer state of the same size."""
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
    """Whether to give up a save that is done to `fraction` for another one of the same size.

    Only if there is time for the other one, but not for both. When nothing has been written yet,
    nothing is lost by giving up.
    """
    if fraction <= 0.0:
        return True
    whole = elapsed_seconds / fraction
    return whole <= seconds_left < whole - elapsed_seconds + whole

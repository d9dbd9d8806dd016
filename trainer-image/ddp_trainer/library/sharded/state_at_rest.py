"""Finds bits that flip in the part of a rank between two steps, where no other rank has the same.

The passes of a step do not change parameters and optimizer states. So if these differ afterwards, a
bit has flipped in this rank's memory. This needs no other rank, and it names the right one. All
ranks then continue from the previous step.
"""

from __future__ import annotations

import json
import logging
from typing import NoReturn

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import ConfigurationError, FlippedBitsError, LeavingError
from ddp_trainer.library.checks.verification import compared, sum_of_state
from ddp_trainer.run.train_state import TrainState

_logger = logging.getLogger(__name__)


class StateAtRest:
    """The state of this rank since its last step."""

    def __init__(self, run: TrainState, *, is_verified: bool) -> None:
        self._run = run
        self._is_verified = is_verified
        self._sum: int | None = None
        """None: the state may change."""
        self._has_flipped = False
        """True: a bit flipped in an earlier try of the present step."""
        self._versions: list[int] = []
        """Counts of changes of each tensor; a script may also change it between two steps."""
        self._has_warned = False

    def note(self) -> None:
        """Note the state before the passes of a step, which do not change it."""
        if self._is_verified:
            # If a rank was lost, the step begins again without a check.
            self._has_flipped = self._differs() and self._versions == self._present_versions()
            self._sum, self._versions = sum_of_state(self._run), self._present_versions()

    def end(self) -> None:
        """Note that the optimizer changes the state from now on."""
        self._sum, self._has_flipped = None, False

    def has_changed(self) -> bool:
        """Return whether bits have flipped since `note`."""
        if not self._differs():
            return False
        if self._versions == self._present_versions():
            return True
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "the script changes weights after job.batches() and before job.step(), so flipped "
                "bits are not found: change weights right after job.step()"
            )
        return False

    def _differs(self) -> bool:
        return self._sum is not None and (self._has_flipped or self._sum != sum_of_state(self._run))

    def _present_versions(self) -> list[int]:
        return [tensor._version for tensor in compared(self._run.models, self._run.optimizers)]


def end_step_of_changed(group: Group, *, is_own: bool, step: int) -> NoReturn:
    """End a step in which the state of some rank has changed; a collective.

    `is_own`: this rank's. `step`: the previous one.

    Raises:
        FlippedBitsError: this rank's state has changed.
        LeavingError: that of other ranks has. All continue from the previous step.
        ConfigurationError: those of all ranks have, so the script does it.
    """
    told = [json.loads(each) for each in group.gather(json.dumps(is_own).encode())]
    ranks = [rank for rank, has_changed in enumerate(told) if has_changed]
    if len(ranks) == group.size:
        raise ConfigurationError(
            f"the states of all ranks have changed since step {step}: the script changes weights "
            "through .data, so remove verify_replicas, or change them right after job.step()"
        )
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    what = f"the state of rank {shown} has changed since step {step}: flipped bits in memory"
    if is_own:
        raise FlippedBitsError(what)
    _logger.warning("%s; continuing from step %d in memory", what, step)
    raise LeavingError(what)

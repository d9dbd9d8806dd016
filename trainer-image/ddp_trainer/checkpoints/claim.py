"""Lets only the newest generation of a job save to its checkpoint directory.

A process on a disconnected node may continue alone, and learn too late that another process has
become rank 0. Both would save to one directory, and a resumed training could load the wrong steps.
So rank 0 of each new group writes a mark to the directory, and a process that finds a newer mark
stops saving. Each mark is a separate file with all data in its name. So no file must be replaced,
which some mounted file systems cannot do atomically.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddp_trainer.exit_codes import SupersededError
from ddp_trainer.settings.environment import Placement

_MARK = re.compile(r"saved-by-(?P<job>.+)-(?P<attempt>\d{1,18})-(?P<generation>\d{1,18})")
_logger = logging.getLogger(__name__)

_Age = tuple[int, int]
"""Attempt and generation; a greater value is newer."""


class Claim:
    """The claim of rank 0's process to the directory in which it saves."""

    def __init__(self, root: Path, placement: Callable[[], Placement]) -> None:
        """`placement`: returns the present placement of this process."""
        self._root = root
        self._placement = placement

    def make(self) -> None:
        """Keep older generations from saving here.

        Writes nothing in jobs that have no generations.

        Raises:
            SupersededError: a newer generation has left a mark.
        """
        self.check()
        marks, mine = self._marks(), self._age
        if (mine[1] == 0 and not marks) or mine in marks:
            return
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            name = f"saved-by-{self._job}-{mine[0]}-{mine[1]}"
            (self._root / name).write_text("no older generation of the job saves here\n")
        except OSError as error:  # saving will fail too, and training survives that
            _logger.warning("cannot keep older generations from saving: %s", error)
            return
        for path in marks.values():
            with suppress(OSError):
                path.unlink()

    def check(self) -> None:
        """Check that this process may save here.

        Raises:
            SupersededError: a newer generation saves here.
        """
        newest, mine = max(self._marks(), default=(0, 0)), self._age
        if newest > mine:
            raise SupersededError(
                f"another generation has taken over: attempt {newest[0]}, generation {newest[1]} "
                f"of the job saves to {self._root}; this process is of {mine[0]}, {mine[1]}"
            )

    @property
    def _age(self) -> _Age:
        placement = self._placement()
        return placement.attempt, placement.generation

    @property
    def _job(self) -> str:
        return re.sub(r"[^\w-]", "_", self._placement().job_uid) or "job"

    def _marks(self) -> dict[_Age, Path]:
        """Return the marks of this job; those of other jobs are ignored."""
        try:
            found = [(_MARK.fullmatch(path.name), path) for path in self._root.iterdir()]
        except OSError:
            return {}
        return {
            (int(mark["attempt"]), int(mark["generation"])): path
            for mark, path in found
            if mark is not None and mark["job"] == self._job
        }

"""Whose checkpoints a directory takes: those of a job's newest generation.

A process whose node was cut off may go on alone, and learn too late that another one is rank 0 in
its place. Both would save into one directory, and a training that resumes would find the other
one's steps. So rank 0 of each group that forms leaves a mark there, and whoever finds a newer one
saves no more. A mark is a file of its own, whose name says all: nothing has to be replaced, which
not all that is mounted can do at once.
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
"""Attempt, and generation in it: what is greater is newer."""


class Claim:
    """Of the process that is rank 0 to the directory that it saves to."""

    def __init__(self, root: Path, placement: Callable[[], Placement]) -> None:
        """`placement`: the present one of this process."""
        self._root = root
        self._placement = placement

    def make(self) -> None:
        """Let no older generation save here from now on.

        Nothing is written where nobody counts generations.

        Raises:
            SupersededError: a newer one has been here.
        """
        self.check()
        marks, mine = self._marks(), self._age
        if (mine[1] == 0 and not marks) or mine in marks:
            return
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            name = f"saved-by-{self._job}-{mine[0]}-{mine[1]}"
            (self._root / name).write_text("no older generation of the job saves here\n")
        except OSError as error:  # nor can be saved, which is survived as well
            _logger.warning("cannot keep older generations from saving: %s", error)
            return
        for path in marks.values():
            with suppress(OSError):
                path.unlink()

    def check(self) -> None:
        """See that this process may save here.

        Raises:
            SupersededError: a newer generation does.
        """
        newest, mine = max(self._marks(), default=(0, 0)), self._age
        if newest > mine:
            raise SupersededError(
                f"another generation has taken over: attempt {newest[0]}, generation {newest[1]} "
                f"of the job saves to {self._root}, this process is of {mine[0]}, {mine[1]}"
            )

    @property
    def _age(self) -> _Age:
        placement = self._placement()
        return placement.attempt, placement.generation

    @property
    def _job(self) -> str:
        return re.sub(r"[^\w-]", "_", self._placement().job_uid) or "job"

    def _marks(self) -> dict[_Age, Path]:
        """Those of this job; another one of the same directory is another matter."""
        try:
            found = [(_MARK.fullmatch(path.name), path) for path in self._root.iterdir()]
        except OSError:
            return {}
        return {
            (int(mark["attempt"]), int(mark["generation"])): path
            for mark, path in found
            if mark is not None and mark["job"] == self._job
        }

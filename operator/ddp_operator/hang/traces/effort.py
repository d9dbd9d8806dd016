"""A limit of the work that the dumps of one job may cause.

Dumps of real trainings need a few steps for each rank and group. Hostile ones could let each rank
wait for all others in operations of its own, and so need millions.
"""


class TooMuchEffortError(Exception):
    """The dumps are too complex to read."""


class Effort:
    """Counts steps, each of a fraction of a microsecond and at most 64 bytes."""

    def __init__(self, steps: int = 300_000) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps before they are made.

        Raises:
            TooMuchEffortError: there are too many.
        """
        self._left -= steps
        if self._left < 0:
            raise TooMuchEffortError

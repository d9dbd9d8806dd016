"""How bytes are read as a history: a job's spec, then steps of three bytes each."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

STEP_BYTES = 3
SPEC_BYTES = 8
LEAST_STEPS, MOST_STEPS = 30, 34


class Choices:
    """Chooses by digits of one number, the first options for small ones, to shrink well."""

    def __init__(self, number: int) -> None:
        self._number = number

    def of(self, options: Sequence[T]) -> T:
        """One of the options."""
        self._number, digit = divmod(self._number, len(options))
        return options[digit]

    def upto(self, most: int) -> int:
        """A number from 0 to `most`."""
        self._number, digit = divmod(self._number, most + 1)
        return digit


def spec_choices(history: bytes) -> Choices:
    """The choices that make the job's spec."""
    return Choices(int.from_bytes(history[:SPEC_BYTES]))


def steps(history: bytes) -> Iterator[tuple[int, Choices]]:
    """Each step: the number of its action, 0 to 255, and its choices."""
    for start in range(SPEC_BYTES, len(history), STEP_BYTES):
        yield history[start], Choices(int.from_bytes(history[start + 1 : start + STEP_BYTES]))

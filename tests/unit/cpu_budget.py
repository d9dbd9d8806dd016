"""How long something keeps the processor, in a measure that every machine has of its own."""

import time
from collections.abc import Callable

import orjson

LOOP_SECONDS = 0.05
"""For which one user's doing may keep the operator from everybody else's jobs, on a machine that
needs `_REFERENCE_SECONDS` for the yardstick."""
_REFERENCE_SECONDS = 0.016
_ROUNDS = 3


def loops(work: Callable[[], object]) -> float:
    """How many times LOOP_SECONDS some work takes: of the processor, not of the clock, and compared
    with what the same processor needs for a fixed piece of work. Both are done by turns: whatever
    else the machine does slows down both.
    """
    document = orjson.dumps({f"name {i}": {"value": i} for i in range(20_000)})
    yardstick: list[float] = []
    found: list[float] = []
    for _ in range(_ROUNDS):
        yardstick.append(_seconds(lambda: orjson.loads(document) == orjson.loads(document)))
        found.append(_seconds(work))
    return min(found) / LOOP_SECONDS * _REFERENCE_SECONDS / min(yardstick)


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began

"""Processor time of some work, in a measure that does not depend on the machine."""

import gc
import time
from collections.abc import Callable

import orjson

LOOP_SECONDS = 0.05
"""How long one user's objects may keep the event loop from all other jobs, on a machine that needs
`_REFERENCE_SECONDS` for the reference work."""
_REFERENCE_SECONDS = 0.016
_DOCUMENT = orjson.dumps({f"name {i}": {"value": i} for i in range(20_000)})
_ROUNDS = 3
_ROUND_SECONDS = 0.02
"""Short work is repeated in each round: the least of few measurements is high while other processes
use the caches."""


def loops(work: Callable[[], object]) -> float:
    """Return how many times LOOP_SECONDS some work takes.

    It measures processor time and compares it with the time of a fixed piece of work, which runs
    in between. So a busy or slow machine slows down both. As in `timeit`, no garbage is collected
    meanwhile, since that takes longer the more tests have run before.
    """
    reference: list[float] = []
    measured: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(_ROUNDS):
            reference.append(_seconds(_reference_work))
            used = 0.0
            while used < _ROUND_SECONDS:
                measured.append(_seconds(work))
                used += measured[-1]
    finally:
        gc.enable()
    return min(measured) / LOOP_SECONDS * _REFERENCE_SECONDS / min(reference)


def slowness() -> float:
    """Return how many times longer than on the reference machine work takes at the moment; at least
    1. Processes that share caches and cores lengthen processor time too, up to threefold.
    """
    return max(1.0, min(_seconds(_reference_work) for _ in range(_ROUNDS)) / _REFERENCE_SECONDS)


def _reference_work() -> None:
    assert orjson.loads(_DOCUMENT) == orjson.loads(_DOCUMENT)


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began

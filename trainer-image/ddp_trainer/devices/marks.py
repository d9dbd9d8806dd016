"""Marks in the queue of a GPU that Python can look at while it keeps its lock.

`query` of torch.cuda.Event, and of torch.Event, keeps Python's lock (the GIL) while it asks the
driver. The driver may let it wait for another thread of this process, such as one that allocates
memory and itself waits for a collective. The thread that would abort this collective then never
gets Python's lock, and nothing ends the wait. `synchronize` releases the lock before it waits, in
all releases of torch that this package supports (torch/csrc/cuda/Event.cpp). So a thread waits
there, and everybody else looks at what it found.

On an H200 (driver 580) neither way kept the lock for more than 5 ms, with another thread that took
and returned memory of the GPU for seconds.
"""

from __future__ import annotations

import threading
from functools import cache
from queue import SimpleQueue

import torch

from ddp_trainer.devices.gate import Event


def mark(device: torch.device) -> Event:
    """Mark the end of what a GPU's current stream was told so far."""
    # `blocking`: the waiting thread sleeps, instead of keeping a CPU core busy.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    made = _Mark(event)
    _marks_to_wait_for(device).put(made)
    return made


class _Mark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event
        self._ended = threading.Event()
        self._failure: Exception | None = None

    def wait(self) -> None:
        try:
            self._event.synchronize()
        except Exception as error:
            self._failure = error
        self._ended.set()

    def query(self) -> bool:
        """Whether the device has come so far; raises if the device has failed."""
        if not self._ended.is_set():
            return False
        if self._failure is not None:
            raise self._failure
        return True


@cache
def _marks_to_wait_for(device: torch.device) -> SimpleQueue[_Mark]:
    marks: SimpleQueue[_Mark] = SimpleQueue()

    def wait_for_each() -> None:
        # Threads begin with GPU 0: the first call of CUDA would take memory there.
        torch.cuda.set_device(device)
        while True:
            marks.get().wait()

    threading.Thread(target=wait_for_each, name="device-marks", daemon=True).start()
    return marks

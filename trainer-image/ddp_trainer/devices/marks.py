"""Marks in the queue of a GPU that can be queried without blocking Python's lock.

`query` of torch.cuda.Event, and of torch.Event, holds Python's lock (the GIL) while it calls the
driver. The driver may make it wait for another thread of this process, such as one that allocates
memory and itself waits for a collective. The thread that would abort this collective then never
gets Python's lock, and nothing ends the wait. `synchronize` releases the lock before it waits, in
all supported releases of torch (torch/csrc/cuda/Event.cpp). So one thread waits there, and all
others read its result.

On an H200 (driver 580), neither call held the lock for more than 5 ms while another thread
allocated and freed GPU memory for seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from queue import SimpleQueue

import torch

from ddp_trainer.devices.gate import Event, expect

_COPY_SECONDS = 300.0
"""Many times the duration of copying the largest GPU memory over a slow bus."""


def mark(device: torch.device) -> Event:
    """Mark the end of the work queued on a GPU's current stream."""
    # `blocking`: the waiting thread sleeps instead of using a CPU core.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    made = _Mark(event)
    _marks_to_wait_for(device).put(made)
    return made


def wait_for_copies(devices: Iterable[torch.device], *, what: str) -> None:
    """Wait until GPUs have copied what was queued on their current streams.

    Raises:
        LostDeviceError: a GPU hangs; `what` describes the copy.
    """
    for device in devices:
        if device.type == "cuda":
            expect(mark(device), within_seconds=_COPY_SECONDS, what=what)


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
        """Return whether the device has reached this point; raise if the device has failed."""
        if not self._ended.is_set():
            return False
        if self._failure is not None:
            raise self._failure
        return True


@cache
def _marks_to_wait_for(device: torch.device) -> SimpleQueue[_Mark]:
    marks: SimpleQueue[_Mark] = SimpleQueue()

    def wait_for_each() -> None:
        # Threads start on GPU 0: the first CUDA call would allocate memory there.
        torch.cuda.set_device(device)
        while True:
            marks.get().wait()

    threading.Thread(target=wait_for_each, name="ddp: waits for the device", daemon=True).start()
    return marks

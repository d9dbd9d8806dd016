"""Polls a mark on a busy GPU while other threads allocate its memory.

    python -m tests.trainer.gpu.busy SECONDS

Prints the longest time in seconds without Python's lock: while it polls a mark of the trainer, and
while it polls torch's event.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import torch
from ddp_trainer.devices.gate import Event
from ddp_trainer.devices.marks import mark
from torch import Tensor

_ALLOCATED_BYTES = 64 << 20


def main(seconds: float) -> None:
    """Poll both."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    cycles = cycles_of(seconds)
    found: dict[str, object] = {}
    for name in ("mark", "event"):
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        event: Any = mark(device) if name == "mark" else torch.cuda.current_stream().record_event()
        found[name], found[f"{name} took"] = longest_pause(event)
    print(json.dumps(found), flush=True)


def cycles_of(seconds: float) -> int:
    """Return the cycles of this time, from a short measurement."""
    tried = 10**8
    torch.cuda.synchronize()
    begun = time.monotonic()
    torch.cuda._sleep(tried)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return int(tried * seconds / (time.monotonic() - begun))


def longest_pause(event: Event) -> tuple[float, float]:
    """Return the longest pause of a thread that reads the clock, and the event's time."""
    over = threading.Event()
    longest = 0.0

    def look_at_the_clock() -> None:
        nonlocal longest
        last = time.monotonic()
        while not over.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    def allocate() -> None:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        kept: list[Tensor] = []
        size = _ALLOCATED_BYTES
        with torch.cuda.stream(stream):
            while not over.is_set() and len(kept) < 100:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                size += 2 << 20
                time.sleep(0.01)
        kept.clear()
        torch.cuda.empty_cache()  # waits for the GPU

    begun = time.monotonic()
    threads = [threading.Thread(target=look_at_the_clock), threading.Thread(target=allocate)]
    for thread in threads:
        thread.start()
    while not event.query():
        time.sleep(0.001)
    took = time.monotonic() - begun
    over.set()
    for thread in threads:
        thread.join()
    return round(longest, 3), round(took, 3)


if __name__ == "__main__":
    main(float(sys.argv[1]))

"""Looks whether the GPU has come to a mark, while it is busy and other threads take its memory.

    python -m tests.trainer.gpu.busy SECONDS

Prints the longest time in which Python's lock was not to be had, in seconds: while a mark of the
trainer was looked at, and while torch's own event was.
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
    """Look by both."""
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
    """How long the GPU has to count for that, by a short try."""
    tried = 10**8
    torch.cuda.synchronize()
    begun = time.monotonic()
    torch.cuda._sleep(tried)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return int(tried * seconds / (time.monotonic() - begun))


def longest_pause(event: Event) -> tuple[float, float]:
    """Of a thread that does nothing but look at the clock; and when the event came."""
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

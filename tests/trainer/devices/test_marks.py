"""Marks in the queue of a GPU: a query does not call CUDA. CUDA's events are stand-ins."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from ddp_trainer.devices import marks
from ddp_trainer.devices.accelerator import Nccl

from tests.trainer.support.pods import until

GPU = torch.device("cuda", 1)


class CudaEvent:
    """Queued work that the test ends."""

    made: list[CudaEvent] = []  # noqa: RUF012

    def __init__(self, *, blocking: bool = False) -> None:
        assert blocking, "a thread would keep a core busy"
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.made.append(self)

    def record(self, stream: torch.device) -> None:
        assert stream == GPU

    def query(self) -> bool:
        raise AssertionError("CUDA's query keeps Python's lock while it waits for the driver")

    def synchronize(self) -> None:
        self.ended.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def gpus_of_threads(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    taken: list[torch.device] = []
    cuda = SimpleNamespace(
        Event=CudaEvent, current_stream=lambda device: device, set_device=taken.append
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(CudaEvent, "made", [])
    marks._marks_to_wait_for.cache_clear()
    return taken


def test_a_mark_is_complete_once_the_device_reaches_it(
    gpus_of_threads: list[torch.device],
) -> None:
    accelerator = Nccl(GPU)
    first, second = accelerator.record(), accelerator.record()
    assert not first.query()
    CudaEvent.made[0].ended.set()
    until(first.query, "the first mark")
    assert not second.query()
    CudaEvent.made[1].ended.set()
    until(second.query, "the second mark")
    assert gpus_of_threads == [GPU]  # by one thread, which uses no other


def test_a_mark_raises_the_error_of_a_failed_device(gpus_of_threads: list[torch.device]) -> None:
    del gpus_of_threads
    mark = Nccl(GPU).record()
    event = CudaEvent.made[0]
    event.error = RuntimeError("CUDA error: device-side assert triggered")
    event.ended.set()

    def has_failed() -> bool:
        try:
            return mark.query()
        except RuntimeError as error:
            return "device-side assert" in str(error)

    until(has_failed, "the error")
    with pytest.raises(RuntimeError, match="device-side assert"):
        mark.query()

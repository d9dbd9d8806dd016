"""Page-locked memory for copies of tensors."""

from __future__ import annotations

import gc

import pytest
import torch
from ddp_trainer.devices.page_locked import page_locked_like


class Cuda:
    """Records calls instead of locking pages."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}

    def lock(self, address: int, size: int) -> None:
        self.locked[address] = size

    def unlock(self, address: int) -> None:
        del self.locked[address]


def originals() -> list[torch.Tensor]:
    return [
        torch.randn(1000, 1001),
        torch.randn(3, 5, dtype=torch.float64).t(),
        torch.arange(7, dtype=torch.int16),
        torch.tensor(True),
        torch.empty(0),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(4, dtype=torch.complex128),
    ]


def test_it_takes_as_much_memory_as_the_tensors() -> None:
    """torch's own allocation rounds each up to a power of two."""
    cuda, given = Cuda(), originals()
    copies = list(page_locked_like(given, lock=cuda.lock, unlock=cuda.unlock))
    [locked] = cuda.locked.values()
    assert 0 <= locked - sum(each.nbytes for each in given) < 512 * len(given)
    for original, copy in zip(given, copies, strict=True):
        assert (copy.shape, copy.dtype) == (original.shape, original.dtype)
        assert copy.stride() == original.stride()
        copy.copy_(original)
    for original, copy in zip(given, copies, strict=True):  # no two share memory
        assert torch.equal(copy, original)


def test_it_is_unlocked_when_the_last_tensor_is_gone() -> None:
    cuda = Cuda()
    copies = list(page_locked_like(originals(), lock=cuda.lock, unlock=cuda.unlock))
    kept = copies[0][10:]
    del copies
    gc.collect()
    assert len(cuda.locked) == 1
    kept.fill_(1.0)
    del kept
    gc.collect()
    assert not cuda.locked


def test_a_refusal_leaves_ordinary_memory(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: int) -> None:
        raise RuntimeError("out of memory")

    copies = list(page_locked_like(originals(), lock=refuse))
    copies[0].fill_(1.0)
    assert "CUDA cannot lock 4 MB of memory" in caplog.text


def test_without_tensors_no_memory_is_locked() -> None:
    cuda = Cuda()
    assert list(page_locked_like([], lock=cuda.lock)) == []
    [empty] = page_locked_like([torch.empty(0)], lock=cuda.lock)
    assert empty.numel() == 0
    assert not cuda.locked

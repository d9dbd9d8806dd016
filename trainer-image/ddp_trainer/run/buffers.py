"""Copies of a run's buffers, so that the passes of a step can be undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALL_BYTES = 1 << 16
"""Copying so little costs less than checking for changes."""


@dataclass(kw_only=True)
class _Copy:
    of: Tensor
    value: Tensor
    version: int
    """Version of the buffer when both were equal."""

    @classmethod
    def new(cls, buffer: Tensor) -> _Copy:
        """Allocate memory for a copy; the copy itself follows later."""
        value = torch.empty_like(buffer, requires_grad=False)
        return cls(of=buffer, value=value, version=-1)

    def fits(self, buffer: Tensor) -> bool:
        """Return whether its memory fits a buffer."""
        value = self.value
        return (
            value.shape == buffer.shape
            and value.dtype == buffer.dtype
            and value.device == buffer.device
        )

    @property
    def is_current(self) -> bool:
        """Return whether the buffer is known to be unchanged since the copy.

        torch counts the changes of a tensor. Exceptions are those by batch norm, which writes its
        running statistics uncounted, and those through `.data`, as is usual for averages of code
        books. Packed weights and masks, which are large and not floating-point, do not change that
        way.
        """
        buffer = self.of
        if buffer.is_floating_point() or buffer.is_complex() or buffer.nbytes <= _SMALL_BYTES:
            return False
        return not buffer.is_inference() and self.version == buffer._version

    def note(self) -> None:
        """Note that both are equal now."""
        self.version = -1 if self.of.is_inference() else self.of._version


class Copies:
    """Copies of the buffers at one moment; the next copies reuse the memory."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []

    @property
    def values(self) -> Sequence[Tensor]:
        """The copies in the order of the buffers."""
        return [copy.value for copy in self._copies]

    def take(self, buffers: Iterable[Tensor]) -> None:
        """Copy all buffers that may have changed since the last call."""
        copies: list[_Copy] = []
        for number, buffer in enumerate(buffers):
            copy = self._copies[number] if number < len(self._copies) else None
            if copy is None or not copy.fits(buffer):
                copy = _Copy.new(buffer)
            elif copy.of is not buffer:
                copy = _Copy(of=buffer, value=copy.value, version=-1)
            copies.append(copy)
        self._copies = copies
        stale = [copy for copy in copies if not copy.is_current]
        _copy_all([copy.of for copy in stale], [copy.value for copy in stale])
        for copy in stale:
            copy.note()

    def put_back(self, buffers: Iterable[Tensor]) -> None:
        """Write the copies to the buffers, which no backward pass may need any longer."""
        for copy, buffer in zip(self._copies, buffers, strict=True):
            if copy.of is not buffer:
                copy.of, copy.version = buffer, -1
        stale = [copy for copy in self._copies if not copy.is_current]
        _copy_all([copy.value for copy in stale], [copy.of for copy in stale])
        for copy in stale:
            copy.note()


@torch.no_grad()
def _copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy all tensors of one type in one launch instead of one for each."""
    alike: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        ours, theirs = alike.setdefault((source.dtype, source.device), ([], []))
        ours.append(source)
        theirs.append(target)
    for some_sources, some_targets in alike.values():
        torch._foreach_copy_(some_targets, some_sources)

"""Copies of what the passes of a step change beside gradients, so that they can be undone.

A pass changes buffers; it may also register some, remove them, or replace them by larger ones. Some
scripts change parameters in the forward pass, such as those of a momentum encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

_layout, _version = attrgetter("shape", "dtype", "device"), attrgetter("_version")
_SMALL_BYTES = 1 << 16
"""Copying so little costs less than checking for changes."""

Slot = tuple[nn.Module, str]
"""A place for a buffer: a module, and the name in it. It may be empty."""


def slots(modules: Iterable[nn.Module]) -> Iterator[Slot]:
    """Yield the places of all buffers in modules that are listed once each."""
    return ((module, name) for module in modules for name in module._buffers)


@dataclass(kw_only=True)
class _Copy:
    of: Tensor
    value: Tensor
    version: int
    """Version of the tensor when both were equal."""

    @classmethod
    def new(cls, tensor: Tensor) -> _Copy:
        """Allocate memory for a copy; the copy itself follows later."""
        value = torch.empty_like(tensor, requires_grad=False)
        return cls(of=tensor, value=value, version=-1)

    def fits(self, tensor: Tensor) -> bool:
        """Return whether its memory fits a tensor."""
        return is_alike(self.value, tensor)

    def concern(self, tensor: Tensor) -> None:
        """Be the copy of this tensor from now on; it must fit."""
        if self.of is not tensor:
            self.of, self.version = tensor, -1

    @property
    def may_be_current(self) -> bool:
        """Return whether changes of the tensor are counted, and worth a look.

        torch counts the changes of a tensor. Exceptions are those by batch norm, which writes its
        running statistics uncounted, and those through `.data`, as is usual for averages of code
        books. Packed weights and masks, which are large and not floating-point, do not change that
        way.
        """
        tensor = self.of
        is_number = tensor.is_floating_point() or tensor.is_complex()
        return not (is_number or tensor.nbytes <= _SMALL_BYTES or tensor.is_inference())

    @property
    def is_current(self) -> bool:
        """Return whether the tensor is known to be unchanged since the copy."""
        return self.may_be_current and self.version == self.of._version

    def note(self) -> None:
        """Note that both are equal now."""
        self.version = -1 if self.of.is_inference() else self.of._version


def is_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether a tensor's values can be written to another one."""
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


Alike = list[tuple[list[Tensor], list[Tensor]]]
"""Sources and targets of copies; those of one type together."""


@dataclass(frozen=True, kw_only=True)
class _Repetition:
    """The copies of a step, for later ones that have the same tensors: most steps of a training."""

    places: Sequence[Slot]
    tensors: Sequence[Tensor]
    layouts: Sequence[tuple[object, ...]]
    counted: Sequence[Tensor]
    """Tensors that are copied only after a change that torch has counted."""
    versions: Sequence[int]
    copies: Alike
    """Of all others."""

    @classmethod
    def of(cls, places: Sequence[Slot], copies: Sequence[_Copy]) -> _Repetition:
        """Return the repetition of copies that were just taken."""
        tensors = [copy.of for copy in copies]
        counted = [copy.of for copy in copies if copy.may_be_current]
        others = [copy for copy in copies if not copy.may_be_current]
        return cls(
            places=places,
            tensors=tensors,
            layouts=[*map(_layout, tensors)],
            counted=counted,
            versions=[*map(_version, counted)],
            copies=_alike([copy.of for copy in others], [copy.value for copy in others]),
        )

    def fits(self, places: Sequence[Slot], tensors: Sequence[Tensor | None]) -> bool:
        """Return whether the tensors are the same ones, as large as they were."""
        return (
            places is self.places
            and len(tensors) == len(self.tensors)
            and all(map(is_, tensors, self.tensors))
            and [*map(_layout, tensors)] == self.layouts
            and [*map(_version, self.counted)] == self.versions
        )


class Copies:
    """Copies of buffers, and of some parameters, at one moment; the next ones reuse the memory."""

    def __init__(self) -> None:
        self._buffers: list[tuple[Slot, _Copy | None]] = []
        """None: the place was empty."""
        self._parameters: list[_Copy] = []
        self._repetition: _Repetition | None = None
        """None: there was no copy yet."""

    @property
    def values(self) -> Sequence[Tensor]:
        """The copies of buffers, in the order of their places."""
        return [copy.value for _, copy in self._buffers if copy is not None]

    def take(self, places: Sequence[Slot], parameters: Sequence[Tensor] = ()) -> None:
        """Copy all tensors that may have changed since the last call."""
        if not (places or parameters or self._buffers or self._parameters):
            return
        tensors = [module._buffers[name] for module, name in places] + [*parameters]
        if self._repetition is not None and self._repetition.fits(places, tensors):
            _copy_all(self._repetition.copies)
            return
        before = self._buffers
        self._buffers = []
        for number, (module, name) in enumerate(places):
            buffer = module._buffers[name]
            known = before[number][1] if number < len(before) else None
            copy = _copy(known, buffer) if buffer is not None else None
            self._buffers.append(((module, name), copy))
        count = len(self._parameters)
        self._parameters = [
            _copy(self._parameters[number] if number < count else None, parameter)
            for number, parameter in enumerate(parameters)
        ]
        stale = [copy for copy in self._copies() if not copy.is_current]
        _copy_all(_alike([copy.of for copy in stale], [copy.value for copy in stale]))
        for copy in stale:
            copy.note()
        self._repetition = _Repetition.of(places, [*self._copies()])

    def put_back(self, places: Iterable[Slot]) -> None:
        """Write the copies to where they come from, which no backward pass may need any longer.

        `places`: those of all present buffers; what is new there is removed.
        """
        self._remove_new(places)
        for (module, name), copy in self._buffers:
            buffer = module._buffers.get(name)
            if copy is None:
                module._buffers[name] = None
            elif buffer is None or not copy.fits(buffer):
                module._buffers[name] = copy.value.clone()
                copy.concern(module._buffers[name])  # type: ignore[arg-type]
            else:
                copy.concern(buffer)
        for copy in self._parameters:
            if not copy.fits(copy.of):
                copy.of.data = copy.value.clone()
        stale = [copy for copy in self._copies() if not copy.is_current]
        _copy_all(_alike([copy.value for copy in stale], [copy.of for copy in stale]))
        for copy in stale:
            copy.note()

    def put_others(self, places: Iterable[Slot]) -> None:
        """Put new tensors with these values there: a backward pass may still need the old ones."""
        self._remove_new(places)
        clones: dict[Tensor, Tensor] = {}  # modules may share a buffer
        for (module, name), copy in self._buffers:
            if copy is not None and copy.of not in clones:
                clones[copy.of] = copy.value.clone()
            module._buffers[name] = clones[copy.of] if copy is not None else None
        for copy in self._parameters:
            copy.of.data = copy.value.clone()

    def _remove_new(self, places: Iterable[Slot]) -> None:
        known = {place for place, _ in self._buffers}
        for module, name in [place for place in places if place not in known]:
            delattr(module, name)

    def _copies(self) -> Iterator[_Copy]:
        yield from (copy for _, copy in self._buffers if copy is not None)
        yield from self._parameters


def _copy(known: _Copy | None, tensor: Tensor) -> _Copy:
    if known is None or not known.fits(tensor):
        return _Copy.new(tensor)
    known.concern(tensor)
    return known


def _alike(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Alike:
    alike: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        ours, theirs = alike.setdefault((source.dtype, source.device), ([], []))
        ours.append(source)
        theirs.append(target)
    return [*alike.values()]


@torch.no_grad()
def _copy_all(copies: Alike) -> None:
    """Copy all tensors of one type in one launch instead of one for each."""
    for sources, targets in copies:
        torch._foreach_copy_(targets, sources)

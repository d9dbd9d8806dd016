"""Transfers the training state from one rank to those that lack it, into their own tensors.

Most of the state is tensors, perhaps gigabytes. They travel in buckets over the devices' own
backend, directly into the memory that will hold them. Everything else travels first, as an outline
with an empty tensor for each real one. A rank that lacks the state has none until all has arrived.

Large tensors that no gradient changes, such as frozen or quantised weights, travel only if a
receiving rank has other values. A new rank has usually loaded the same ones.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.collectives.group import Group
from ddp_trainer.run.fingerprint import fingerprint
from ddp_trainer.run.savable import without_tensors
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import Place, tensors_by_place

COMPARED_BYTES = 1 << 20
"""Tensors of at least this size are compared before they are sent."""
BUCKET_BYTES = 32 << 20
"""Size of a bucket. Small tensors share one, large ones are split. The group's timeout applies to
each bucket."""


def transfer_state(run: TrainState, group: Group, *, source: int, lacks_it: bool) -> int:
    """Send rank `source`'s state to the ranks that lack it; return the bytes sent. A collective.

    The other ranks take part in the broadcasts and keep their own state.
    """
    if group.size == 1:
        return 0
    giver = group.rank == source
    state = run.full_state_dict() if giver or lacks_it else {}
    own = dict(tensors_by_place(state))
    outline = _Outline.of(state, own, _untrained(run.models)) if giver else None
    message = group.broadcast(outline.pack() if outline is not None else None, source=source)
    outline = outline or _Outline.unpack(message)
    holes = outline.holes
    travels = _needed(outline, own, group, lacks_it=lacks_it)
    if lacks_it:
        run.is_fresh = run.is_torn = True
    slots = [
        _Slot(own[place] if giver else _room(own.get(place), hole, on_device, group.device))
        if giver or lacks_it
        else None
        for (place, hole), on_device in zip(holes.items(), outline.on_device, strict=True)
    ]
    for pieces in _buckets(list(holes.values()), outline.on_device, travels):
        tensors = [
            slot.bytes[begin:end]
            for number, begin, end in pieces
            if (slot := slots[number]) is not None
        ]
        if not tensors:
            size = sum(end - begin for _, begin, end in pieces)
            device = _home(outline.on_device[pieces[0][0]], group.device)
            tensors = [torch.empty(size, dtype=torch.uint8, device=device)]
        if len(pieces) == 1:  # most of a large state; it is not copied on the way
            group.broadcast_tensor(tensors[0], source=source)
        else:
            group.broadcast_tensors(*tensors, source=source)
    group.gate.wait()
    if lacks_it:
        filled = {place: slot.filled() for place, slot in zip(holes, slots, strict=True) if slot}
        run.load_state_dict(outline.with_tensors(filled))
    return sum(hole.nbytes for hole, needed in zip(holes.values(), travels, strict=True) if needed)


def _needed(
    outline: _Outline, own: Mapping[Place, Tensor], group: Group, *, lacks_it: bool
) -> list[bool]:
    """Return for each tensor whether a rank that lacks the state needs it; a collective."""
    if all(print_ is None for print_ in outline.prints):
        return [True] * len(outline.prints)
    differs: list[float] = []
    columns = zip(outline.holes.items(), outline.on_device, outline.prints, strict=True)
    for (place, hole), on_device, print_ in columns:
        mine = own.get(place)
        if print_ is None:
            is_needed = True
        elif mine is None or not _fits(mine, hole, on_device, group.device):
            is_needed = lacks_it
        else:
            is_needed = lacks_it and fingerprint(mine) != print_
        differs.append(float(is_needed))
    return [count > 0 for count in group.sum(*differs)]


def _untrained(models: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yield the models' tensors that no gradient changes: buffers and frozen parameters.

    Something else may change them, for example an average of weights.
    """
    for model in models:
        yield from (each for each in model.parameters() if not each.requires_grad)
        yield from model.buffers()


@dataclass(frozen=True)
class _Outline:
    """A state with empty tensors (device "meta") instead of its own."""

    state: Any
    on_device: list[bool]
    """For each tensor, True if it is on the rank's device and False if it is on the CPU."""
    prints: list[int | None]
    """The fingerprint of each tensor that is compared before it is sent."""

    @classmethod
    def of(
        cls, state: Mapping[str, Any], tensors: Mapping[Place, Tensor], untrained: Iterable[Tensor]
    ) -> _Outline:
        """Make the outline of a state."""
        on_device = [tensor.device.type != "cpu" for tensor in tensors.values()]
        compared = {each.data_ptr() for each in untrained if each.nbytes >= COMPARED_BYTES}
        prints = [
            fingerprint(tensor) if tensor.data_ptr() in compared else None
            for tensor in tensors.values()
        ]
        return cls(without_tensors(state), on_device, prints)

    @property
    def holes(self) -> dict[Place, Tensor]:
        """Return the empty tensors."""
        return dict(tensors_by_place(self.state))

    def with_tensors(self, tensors: Mapping[Place, Tensor]) -> Any:
        """Return the state with these tensors in their places."""
        memo = {id(hole): tensors[place] for place, hole in self.holes.items()}
        return copy.deepcopy(self.state, dict[int, Any](memo))

    def pack(self) -> bytes:
        """Encode the outline as a message."""
        file = io.BytesIO()
        torch.save((self.state, self.on_device, self.prints), file)
        return file.getvalue()

    @classmethod
    def unpack(cls, message: bytes) -> _Outline:
        """Decode a message."""
        return cls(*torch.load(io.BytesIO(message), weights_only=True))


class _Slot:
    """The memory of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._contiguous = self._tensor.contiguous()
        self.bytes = self._contiguous.reshape(-1).view(torch.uint8)

    def filled(self) -> Tensor:
        """Return the tensor after all of its bytes have arrived."""
        if self._contiguous is not self._tensor:
            self._tensor.copy_(self._contiguous)
        return self._tensor


def _room(own: Tensor | None, hole: Tensor, on_device: bool, device: torch.device) -> Tensor:
    """Return the memory for a tensor: the rank's own tensor if it fits, otherwise new memory."""
    if own is not None and _fits(own, hole, on_device, device):
        return own
    return torch.empty(hole.shape, dtype=hole.dtype, device=_home(on_device, device))


def _fits(own: Tensor, hole: Tensor, on_device: bool, device: torch.device) -> bool:
    alike = own.shape == hole.shape and own.dtype == hole.dtype
    return alike and own.device == _home(on_device, device)


def _home(on_device: bool, device: torch.device) -> torch.device:
    return device if on_device else torch.device("cpu")


def _buckets(
    tensors: list[Tensor], on_device: list[bool], travels: list[bool]
) -> Iterator[list[tuple[int, int, int]]]:
    """Yield pieces (tensor number, first byte, end) that travel together; equal on all ranks."""
    pieces: list[tuple[int, int, int]] = []
    room = BUCKET_BYTES
    for number, tensor in enumerate(tensors):
        size, begin = tensor.nbytes if travels[number] else 0, 0
        if pieces and on_device[number] != on_device[pieces[-1][0]]:
            yield pieces
            pieces, room = [], BUCKET_BYTES
        while begin < size:
            end = min(begin + room, size)
            pieces.append((number, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield pieces
                pieces, room = [], BUCKET_BYTES
    if pieces:
        yield pieces

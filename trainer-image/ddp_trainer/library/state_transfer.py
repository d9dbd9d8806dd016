"""A run's state from the rank that has it to those that lack it, in their own tensors.

What holds the state are tensors, of gigabytes perhaps: they travel in buckets, over the devices'
own backend, into the memory that will hold them. All else goes before, as an outline with a hole
for each tensor. Whoever lacks the state has none until all of it has come.

Large tensors that no gradient changes, such as frozen or quantised weights, travel only where a
rank that lacks the state has others in their place: a new rank has usually loaded the same ones.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.collectives.group import Group
from ddp_trainer.run.fingerprint import fingerprint
from ddp_trainer.run.savable import without_tensors
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import Place, tensors_by_place

COMPARED_BYTES = 1 << 20
"""From this size on a tensor is compared before it is sent."""
BUCKET_BYTES = 32 << 20
"""What small tensors travel in together, and large ones in parts: each part has the group's timeout
to itself."""


def transfer_state(run: TrainState, group: Group, *, source: int, lacks_it: bool) -> int:
    """Give rank `source`'s state to the ranks that lack it; returns the bytes sent. A collective.

    Ranks that neither have to give nor lack it pass on what they get, and keep their own.
    """
    if group.size == 1:
        return 0
    giver = group.rank == source
    state = run.full_state_dict() if giver or lacks_it else {}
    own = dict(tensors_by_place(state))
    outline = _Outline.of(state, own, run.untrained()) if giver else None
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
        if len(pieces) == 1:  # most of a large state, which is not copied on its way
            group.pass_on(tensors[0], source=source)
        else:
            group.share(*tensors, source=source)
    group.gate.wait()
    if lacks_it:
        filled = {place: slot.filled() for place, slot in zip(holes, slots, strict=True) if slot}
        run.load_state_dict(outline.with_tensors(filled))
    return sum(hole.nbytes for hole, needed in zip(holes.values(), travels, strict=True) if needed)


def _needed(
    outline: _Outline, own: Mapping[Place, Tensor], group: Group, *, lacks_it: bool
) -> list[bool]:
    """Of each tensor, whether some rank that lacks the state has another one; a collective."""
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


@dataclass(frozen=True)
class _Outline:
    """A state with tensors that hold nothing ("meta") in the place of its own."""

    state: Any
    on_device: list[bool]
    """Of each tensor, whether it is on the rank's device; else it is on the CPU."""
    prints: list[int | None]
    """The fingerprint of each tensor that is compared before it is sent."""

    @classmethod
    def of(
        cls, state: Mapping[str, Any], tensors: Mapping[Place, Tensor], untrained: Iterable[Tensor]
    ) -> _Outline:
        """What is left of a state without its tensors."""
        on_device = [tensor.device.type != "cpu" for tensor in tensors.values()]
        compared = {each.data_ptr() for each in untrained if each.nbytes >= COMPARED_BYTES}
        prints = [
            fingerprint(tensor) if tensor.data_ptr() in compared else None
            for tensor in tensors.values()
        ]
        return cls(without_tensors(state), on_device, prints)

    @property
    def holes(self) -> dict[Place, Tensor]:
        """The tensors that hold nothing."""
        return dict(tensors_by_place(self.state))

    def with_tensors(self, tensors: Mapping[Place, Tensor]) -> Any:
        """The state, with these in their places."""
        memo = {id(hole): tensors[place] for place, hole in self.holes.items()}
        return copy.deepcopy(self.state, dict[int, Any](memo))

    def pack(self) -> bytes:
        """As a message."""
        file = io.BytesIO()
        torch.save((self.state, self.on_device, self.prints), file)
        return file.getvalue()

    @classmethod
    def unpack(cls, message: bytes) -> _Outline:
        """Of a message."""
        return cls(*torch.load(io.BytesIO(message), weights_only=True))


class _Slot:
    """The memory of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._contiguous = self._tensor.contiguous()
        self.bytes = self._contiguous.reshape(-1).view(torch.uint8)

    def filled(self) -> Tensor:
        """The tensor, when all of its bytes have come."""
        if self._contiguous is not self._tensor:
            self._tensor.copy_(self._contiguous)
        return self._tensor


def _room(own: Tensor | None, hole: Tensor, on_device: bool, device: torch.device) -> Tensor:
    """Where a tensor is to be: in the place of its like, or in new memory."""
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
    """Pieces (number of the tensor, first byte, end) that travel together; alike on all ranks."""
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

"""Gives all ranks rank 0's buffers, as DistributedDataParallel does, while scripts change them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ddp_trainer.collectives.group import Group
from ddp_trainer.run.buffers import Slot, is_alike


@dataclass
class _Shared:
    place: Slot
    tensor: Tensor
    """The last one at this place that had the shape on which all ranks agreed."""

    def present(self) -> Tensor:
        """Return the tensor at this place, or the last one that all ranks can exchange."""
        module, name = self.place
        buffer = module._buffers.get(name)
        if buffer is not None and is_alike(buffer, self.tensor):
            self.tensor = buffer
        return self.tensor


class SharedBuffers:
    """The buffers that all ranks had with the same shapes when they last agreed.

    A pass may register others, or replace one by a larger one, such as a table for longer texts.
    It may do so on one rank alone; then the other ranks keep theirs.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self.shared: list[_Shared] = []
        """The same on all ranks."""

    def agree(self, group: Group) -> None:
        """Find out which buffers all ranks have; a collective."""
        own = dict(self._named())
        shapes = {name: [*_shape(tensor)] for name, (_, tensor) in own.items()}
        message = json.dumps(shapes).encode()
        digest = int.from_bytes(hashlib.blake2b(message, digest_size=7).digest())
        [(least, greatest)] = group.bounds(digest)
        if least != greatest:
            told = [json.loads(each) for each in group.gather(message)]
            shapes = {n: s for n, s in told[0].items() if all(each.get(n) == s for each in told)}
        self.shared = [_Shared(*own[name]) for name in shapes]

    def share(self, group: Group, *, in_turn: bool = False) -> None:
        """Replace the buffers by rank 0's; a collective.

        `in_turn`: backward passes may still need the old tensors. If the group breaks, none
        changes.
        """
        present = [  # most buffers are the same tensors in all steps
            each.tensor
            if each.place[0]._buffers.get(each.place[1]) is each.tensor
            else each.present()
            for each in self.shared
        ]
        values = [tensor.clone() for tensor in present] if in_turn else present
        group.broadcast_tensors(*values)
        if not in_turn:
            return
        for each, old, value in zip(self.shared, present, values, strict=True):
            module, name = each.place
            if module._buffers.get(name) is old:
                module._buffers[name] = value

    def _named(self) -> Iterator[tuple[str, tuple[Slot, Tensor]]]:
        for number, model in enumerate(self._models):
            for path, module in model.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        yield f"{number}/{path}/{name}", ((module, name), buffer)


def _shape(tensor: Tensor) -> Iterator[str | int]:
    yield str(tensor.dtype)
    yield from tensor.shape

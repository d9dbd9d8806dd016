"""Reads the batches of an epoch one after another, and gives each again as it was read.

What a script adds to or removes from a container, it does to a copy of that container. Tensors are
not copied. If one has changed when the batch is due again, the batch must be read again.
"""

from __future__ import annotations

import copy
import numbers
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddp_trainer.data.sampler import Share
from ddp_trainer.data.samplers import Key

_requires_grad, _counted_version = attrgetter("requires_grad"), attrgetter("_version")
_is_inference = Tensor.is_inference
_CONSTANT = (str, bytes, numbers.Number, Enum, type(None))
"""Types of objects that no script can change."""


class Batches(Dataset[Any]):
    """The batches of a loader, by the keys of their samples; they draw no random numbers."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._dataset: Any = loader.dataset
        self._collate = loader.collate_fn
        self._seed = seed

    def __getitems__(self, keys: list[Key]) -> Any:
        """Return the samples as a batch, which needs no further `collate_fn`."""
        return self._collate(self._samples(keys))

    def _samples(self, keys: list[Key]) -> Any:
        dataset = self._dataset
        if callable(read := getattr(dataset, "__getitems__", None)):
            return read([key[-1] for key in keys])
        return [dataset[key[-1]] for key in keys]


def keys_of(
    steps: Iterable[Share], keys: Callable[[list[int]], Iterable[Key]]
) -> Iterator[list[Key]]:
    """Yield the keys of the samples of each batch of these steps."""
    for share in steps:
        for batch in share.read:
            yield [*keys(batch)]


class Rest:
    """One rank's share of each step up to the end of an epoch."""

    has_end = None
    """None: all ranks know the end from the number of samples."""

    def __init__(
        self,
        steps: Iterator[Share],
        count: int,
        batches: Iterator[Any],
        read_again: Callable[[list[int]], Any],
    ) -> None:
        """`count`: number of steps. `batches`: those of all steps, one after another.

        `read_again` reads one of them, as `Share.read` names it.
        """
        self._steps = steps
        self._left = count
        self.is_at_end = count == 0
        """True if no steps remain."""
        self._batches = batches
        self._read_again = read_again
        self._read: list[Original] = []
        """The batches of this step that were due."""

    def next_step(self) -> Share | None:
        """Return this rank's share of the next step; None: there is none."""
        share = next(self._steps, None)
        self._left -= share is not None
        self.is_at_end = self._left == 0
        self._read = []
        return share

    def batch(self, share: Share, number: int) -> Any:
        """Return a batch of the step, by its number in it; the first time, the next one.

        Each time it is as it was read, also if the script has changed it.
        """
        if number == len(self._read):
            self._read.append(Original(next(self._batches)))
        elif not self._read[number].is_unchanged:
            self._read[number] = Original(self._read_again(share.read[number]))
        return self._read[number].copy()


class Original:
    """A batch as it was read."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        # Most batches are a list of tensors.
        self._is_flat = type(batch) in (list, tuple) and {Tensor}.issuperset(map(type, batch))
        self._leaves = batch if self._is_flat else [*_leaves(batch)]
        self._versions = _versions(self._leaves, are_tensors=self._is_flat)

    def copy(self) -> Any:
        """Return the batch in new containers, with the same tensors."""
        if self._is_flat:
            return type(self._batch)(self._batch)
        return _mapped(self._batch, lambda leaf: leaf)

    @property
    def is_unchanged(self) -> bool:
        """Return whether the tensors are known to be as they were read.

        torch counts the changes of a tensor, but not those through `.data` or NumPy. Of objects of
        other types nothing is known.
        """
        return None not in self._versions and self._versions == _versions(self._leaves)


def _versions(leaves: Sequence[Any], *, are_tensors: bool = False) -> list[int | None]:
    """Return what tells changed objects from unchanged ones; None: nothing does."""
    if are_tensors and not (any(map(_requires_grad, leaves)) or any(map(_is_inference, leaves))):
        return [*map(_counted_version, leaves)]  # without Python for each
    return [_version(leaf) for leaf in leaves]


def _version(leaf: Any) -> int | None:
    if isinstance(leaf, _CONSTANT):
        return 0
    # A pass adds a gradient to a tensor that requires one, which is no counted change.
    if not isinstance(leaf, Tensor) or leaf.is_inference() or leaf.requires_grad:
        return None
    return leaf._version


def _leaves(batch: Any) -> Iterator[Any]:
    found: list[Any] = []
    _mapped(batch, found.append)
    yield from found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value in new containers, in which each other object is replaced."""
    again: Callable[[Any], Any] = lambda part: _mapped(part, change)  # noqa: E731
    made: Any
    if isinstance(value, UserDict):  # such as the BatchEncoding of transformers
        made = copy.copy(value)
        made.data = again(value.data)
        return made
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, again(part)) for key, part in value.items())
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(again, value))
    if type(value) in (list, tuple):
        return type(value)(map(again, value))
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, again(getattr(value, field.name)))
        return made
    return change(value)

"""Reads batches in which each sample has its own random numbers.

Seeding takes longer than reading a small sample, and most of those draw nothing. So samples are
read with Python's and NumPy's generators, and the GPU's, in one constant state. If that has changed
after the batch, the batch is read again with a seed for each sample, and so are all later ones.
Either way, a sample depends on its place in the training alone, not on the worker, the number of
ranks or earlier samples.

torch's generator always has each sample's seed, because `torch.initial_seed()` shows it to datasets
that seed generators of their own. Those that read a state of the others, which nobody needs to, may
find either one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from ddp_trainer.data.batches import Batches
from ddp_trainer.data.samplers import Key
from ddp_trainer.run.seeds import (
    next_numbers,
    seed_all_but_torch,
    seed_by_name,
    seed_torch_by_name,
)


class SeededAtOnce(Batches):
    """The same with random numbers for each batch."""

    def __getitems__(self, keys: list[Key]) -> Any:
        """Return the samples as a batch."""
        seed_by_name(self._seed, *keys[0], len(keys), "batch")
        return super().__getitems__(keys)


class SeededBySample(Batches):
    """The same with random numbers for each sample, if the dataset or the `collate_fn` draws."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        super().__init__(loader, seed=seed)
        self._draws: bool | None = None
        """None: nothing was read yet. False: nothing has drawn so far."""
        self._undrawn: list[object] = []
        """The next numbers of the constant state."""

    def __getitems__(self, keys: list[Key]) -> Any:
        """Return the samples as a batch; until one draws, each is read once."""
        if not self._draws:
            self._rewind()
            samples = self._read(keys[:1], seed_torch_by_name)
            if self._draws is None:  # most datasets that draw do so for each sample
                self._draws = self._has_drawn()
                self._rewind()
        if not self._draws:
            samples += self._read(keys[1:], seed_torch_by_name)
            batch = self._collate(samples)
            self._draws = self._has_drawn()
            if not self._draws:
                return batch
        return super().__getitems__(keys)

    def _samples(self, keys: list[Key]) -> Any:
        return self._read(keys, seed_by_name)

    def _read(self, keys: list[Key], seed: Callable[..., None]) -> list[Any]:
        samples = []
        for key in keys:
            seed(self._seed, *key, "sample")
            samples.append(self._dataset[key[-1]])
        return samples

    def _rewind(self) -> None:
        seed_all_but_torch(self._seed)

    def _has_drawn(self) -> bool:
        """Return whether the generators have left the constant state."""
        numbers = next_numbers()
        if len(numbers) != len(self._undrawn):  # the first time, or a GPU is in use since then
            self._rewind()
            self._undrawn = next_numbers()
        return numbers != self._undrawn


def seeded(loader: DataLoader[Any], *, seed: int) -> Batches:
    """Return the batches of a loader with a seed for each sample, or for each batch if one serves.

    A TensorDataset draws nothing, but a subclass of Subset around it may.
    """
    dataset, kinds = loader.dataset, set[type]()
    while isinstance(dataset, Subset):  # it passes calls on to its dataset
        kinds.add(type(dataset))
        dataset = dataset.dataset
    is_tensors = type(dataset) is TensorDataset and kinds <= {Subset}
    if is_tensors and loader.collate_fn is default_collate:
        return Batches(loader, seed=seed)
    if is_tensors or callable(getattr(dataset, "__getitems__", None)):
        return SeededAtOnce(loader, seed=seed)
    return SeededBySample(loader, seed=seed)

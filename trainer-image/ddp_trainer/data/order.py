"""The order of an epoch's samples, computed without a list if there are very many.

Up to a few million samples it is torch's `randperm`, as in DistributedSampler. Beyond that, each
position is computed separately: a Feistel network (Luby and Rackoff, 1988) permutes the numbers of
the required bits. A result beyond the last sample passes through it again until it is a sample
("cycle walking", Black and Rogaway, 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

Places = npt.NDArray[np.int64]
Order = Callable[[Places], Places]
"""Positions in an epoch → samples there."""

_LARGEST_LIST = 1 << 22
"""Largest number of samples for which each rank holds a list: 32 MB."""
_ROUNDS = 6
"""Four give a pseudorandom permutation if the round function is pseudorandom; two more are a
reserve."""


def unshuffled(places: Places) -> Places:
    """Return the samples in the order of the dataset."""
    return places


def shuffled(length: int, *, seed: int) -> Order:
    """Return a random order of `length` samples."""
    if length > _LARGEST_LIST:
        return partial(_computed, length=length, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator).numpy()
    return lambda places: order[places]


def _computed(places: Places, *, length: int, seed: int) -> Places:
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = np.random.default_rng(seed).integers(1 << 63, size=_ROUNDS, dtype=np.uint64)
    values = _mixed(places.astype(np.uint64), keys, half)
    while (beyond := values >= length).any():
        values[beyond] = _mixed(values[beyond], keys, half)
    return values.astype(np.int64)


def _mixed(
    values: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64], half: int
) -> npt.NDArray[np.uint64]:
    """Permute the numbers of twice `half` bits."""
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for key in keys:
        left, right = right, left ^ (_hash(right ^ key) & mask)
    return (left << np.uint64(half)) | right


def _hash(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits, so that each one depends on all (finalizer of MurmurHash3, Austin Appleby)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))

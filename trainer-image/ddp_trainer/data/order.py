"""The order of an epoch's samples, which no rank has to hold where there are very many.

Up to a few million samples it is torch's `randperm`, as DistributedSampler has it. Beyond, each
place is computed by itself: a Feistel network (Luby and Rackoff, 1988) maps the numbers of as many
bits as are needed one to one to each other, and what falls beyond the last sample goes through it
again until it does not ("cycle walking", Black and Rogaway, 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

Places = npt.NDArray[np.int64]
Order = Callable[[Places], Places]
"""Places in an epoch → samples there."""

_LARGEST_LIST = 1 << 22
"""Samples of which each rank can well hold a list: 32 MB."""
_ROUNDS = 6
"""Four make it a permutation like any other, if what is mixed in looks random; some to spare."""


def unshuffled(places: Places) -> Places:
    """Each sample in its own place."""
    return places


def shuffled(length: int, *, seed: int) -> Order:
    """A random order of so many samples."""
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
    """One to one, for numbers of twice `half` bits."""
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for key in keys:
        left, right = right, left ^ (_hash(right ^ key) & mask)
    return (left << np.uint64(half)) | right


def _hash(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit depends on every other (the finaliser of MurmurHash3, by Austin Appleby)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))

"""Fingerprints of training sets, by which ranks find out that they read different ones.

Each rank reads the whole set, and `job.batches` divides it. A script that also divides it itself
trains each rank on a part of its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from ddp_trainer.run.fingerprint import sum_of_bits

_PLACES = 8
_DEEPEST = 4
_READS_NOTHING = (TensorDataset, list, tuple, range)
"""Exactly these have their samples in memory, and give the same ones each time."""


def certain(dataset: Dataset[Any]) -> bytes:
    """Return what is known of a set without reading files: selections, and samples in memory.

    Ranks with different ones have different sets.
    """
    known = hashlib.blake2b(digest_size=8)
    inner: Any = dataset
    while isinstance(inner, Subset):
        known.update(np.asarray(inner.indices, dtype=np.int64).tobytes())
        inner = inner.dataset
    if type(inner) in _READS_NOTHING:
        known.update(_samples(inner.__getitem__, len(inner)))
    return known.digest()


def of_batch(batch: Any) -> bytes:
    """Return a digest of a batch."""
    return hashlib.blake2b(repr(_digest(batch, 0)).encode(), digest_size=8).digest()


def _samples(read: Callable[[int], Any], length: int) -> bytes:
    known = hashlib.blake2b(digest_size=8)
    last = length - 1
    places = {last * number // (_PLACES - 1) for number in range(_PLACES)} if length else ()
    for place in sorted(places):
        known.update(repr(_digest(read(place), 0)).encode())
    return known.digest()


def _digest(value: Any, depth: int) -> object:
    """Return a small value that is equal for equal samples."""
    found: object = type(value).__name__
    match value:
        case _ if depth > _DEEPEST:
            pass
        case Tensor():
            dense = value.to_dense() if value.layout != torch.strided else value
            found = str(value.dtype), tuple(value.shape), sum_of_bits([dense])
        case np.ndarray() if value.dtype != object:
            content = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=8)
            found = str(value.dtype), value.shape, content.digest()
        case bool() | int() | float() | complex() | str() | bytes() | None:
            found = value
        case Mapping():
            found = [(str(key), _digest(each, depth + 1)) for key, each in value.items()]
        case list() | tuple():
            found = [_digest(each, depth + 1) for each in value]
    return found

"""Fingerprints of tensors: equal ones need not be sent between ranks, others show a fault."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
_MASK = (1 << 64) - 1
_SMALL_BYTES = 1 << 16
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd factors, like those of splitmix64: each input bit changes half of the output bits."""


def fingerprint(tensor: Tensor) -> int:
    """Return 64 bits that identify a tensor's content; comparable between devices of one kind.

    Different tensors have the same fingerprint by accident with a probability of about 2^-64.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return by_hash(data) if data.device.type == "cpu" else by_sum(data)


def by_hash(data: Tensor) -> int:
    """Return the fingerprint of bytes on the CPU; the hash releases Python's lock."""
    return int.from_bytes(hashlib.blake2b(data.numpy().data, digest_size=8).digest())


def by_sum(data: Tensor) -> int:
    """Return the fingerprint of bytes on any device, computed there.

    It uses integers, so the order of sums does not matter. It does not protect against tensors that
    were made to have the same fingerprint.
    """
    found = data.numel()
    for begin in range(0, data.numel(), _CHUNK_BYTES):
        found = (found * (_FACTORS[0] & _MASK) + _mixed(data[begin : begin + _CHUNK_BYTES])) & _MASK
    return found


def _mixed(data: Tensor) -> int:
    words = torch.zeros(-(-data.numel() // 8), dtype=torch.int64, device=data.device)
    words.view(torch.uint8)[: data.numel()].copy_(data)
    words += torch.arange(1, len(words) + 1, device=data.device) * _FACTORS[0]
    for factor in _FACTORS[1:]:
        words ^= words >> 30
        words *= factor
    words ^= words >> 31
    return int(words.sum()) & _MASK


def sum_of_bits(tensors: Iterable[Tensor]) -> int:
    """Return a signed 64-bit sum of all bits of some tensors, as fast as their memory is read.

    A single flipped bit always changes it, several ones almost always. The order of the tensors
    does not matter.
    """
    sums: dict[torch.device, list[Tensor]] = {}
    small: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for words in map(_words, tensors):
        if words.nbytes > _SMALL_BYTES:
            sums.setdefault(words.device, []).append(words.sum(dtype=torch.int64))
        else:  # a sum of its own would take longer than the copy
            small.setdefault((words.device, words.dtype), []).append(words)
    for (device, _), some in small.items():
        sums.setdefault(device, []).append(torch.cat(some).sum(dtype=torch.int64))
    found = sum(int(torch.stack(some).sum()) for some in sums.values()) & _MASK
    return found - (1 << 64) if found >> 63 else found


def _words(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as integers that are as long as possible."""
    flat = tensor.detach().reshape(-1)
    begin, size = flat.storage_offset() * flat.itemsize, flat.nbytes
    return flat.view(next(kind for kind in _WORDS if (begin | size) % kind.itemsize == 0))

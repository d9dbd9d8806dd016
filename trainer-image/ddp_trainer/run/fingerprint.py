"""Fingerprints of tensors: equal ones need not be sent between ranks, others show a fault."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
_MASK = (1 << 64) - 1
_SMALL_BYTES = 1 << 15
"""For smaller tensors on the CPU, a sum of their own takes longer than a copy."""
_SMALL_ON_DEVICE_BYTES = 4 << 20
"""The same for GPUs: measured on an H100."""
_BATCH_BYTES = 64 << 20
"""Limit of the memory for such copies."""
_WORD_BYTES = 8
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

    A single flipped bit always changes it, several ones almost always. Tensors in another order
    may have another sum.
    """
    sums: dict[torch.device, list[Tensor]] = {}
    small: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    with torch.no_grad():  # cheaper than detaching each tensor
        for tensor in tensors:
            flat = tensor.reshape(-1)
            device = flat.device
            if flat.nbytes > (_SMALL_BYTES if device.type == "cpu" else _SMALL_ON_DEVICE_BYTES):
                sums.setdefault(device, []).extend(_sums(flat))
            else:
                small.setdefault((device, flat.dtype), []).append(flat)
        for (device, _), some in small.items():
            for batch in _batches(some):
                sums.setdefault(device, []).extend(_sums(torch.cat(batch)))
        found = sum(int(torch.stack(some).sum()) for some in sums.values()) & _MASK
    return found - (1 << 64) if found >> 63 else found


def _batches(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    batch: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if size + tensor.nbytes > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += tensor.nbytes
    yield batch


def _sums(flat: Tensor) -> Iterator[Tensor]:
    """Yield the sum of the 64-bit words of a tensor's memory, and that of the bytes around them.

    torch adds shorter integers many times slower.
    """
    size = flat.itemsize
    begin = -flat.storage_offset() * size % _WORD_BYTES // size
    end = begin + (flat.nbytes - begin * size) // _WORD_BYTES * _WORD_BYTES // size
    if (begin, end) != (0, len(flat)):
        yield torch.cat([flat[:begin], flat[end:]]).view(torch.uint8).sum()
        flat = flat[begin:end]
    yield flat.view(torch.int64).sum()

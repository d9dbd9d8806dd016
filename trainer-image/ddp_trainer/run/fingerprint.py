"""Numbers that differ where tensors differ, so that what two ranks have need not be sent."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
_MASK = (1 << 64) - 1
_FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd, as those of splitmix64: each bit of a word changes half of the bits of what it becomes."""


def fingerprint(tensor: Tensor) -> int:
    """64 bits of a tensor's content, for comparison with tensors on devices of the same kind.

    Tensors that differ by accident have the same one with a probability of about 2^-64.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return by_hash(data) if data.device.type == "cpu" else by_sum(data)


def by_hash(data: Tensor) -> int:
    """Of bytes on the CPU, by one that other threads do not wait for."""
    return int.from_bytes(hashlib.blake2b(data.numpy().data, digest_size=8).digest())


def by_sum(data: Tensor) -> int:
    """Of bytes on any device, computed there; in whole numbers, so that no order of sums matters.

    It is no defence against somebody who looks for tensors that have the same one.
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

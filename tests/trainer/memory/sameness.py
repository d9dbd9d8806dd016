"""Compares states of trainings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def same(left: Any, right: Any) -> bool:
    """Return whether two states have the same types and values, bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and bits_of(left) == bits_of(right)
        )
    if isinstance(left, np.ndarray | np.generic):
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)  # NaN equals NaN, and -0.0 is not 0.0


def bits_of(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's values."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).cpu().numpy().tobytes() if flat.numel() else b""

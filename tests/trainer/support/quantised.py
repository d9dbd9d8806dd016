"""A model like those of QLoRA and GPTQ: most of it is frozen, and it refuses to move."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn


class Quantised(nn.Module):
    """Packed weights in a buffer, a frozen embedding, and a trained adapter."""

    packed: Tensor

    def __init__(self, *, side: int, seed: int = 0) -> None:
        """`side`: width of the square matrices."""
        super().__init__()
        torch.manual_seed(seed)
        packed = torch.randint(-(1 << 31), 1 << 31, (side, side), dtype=torch.int32)
        self.register_buffer("packed", packed)
        self.embedding = nn.Embedding(side, side).requires_grad_(False)
        self.adapter = nn.Linear(side, 4)

    def to(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to move, like quantised models."""
        raise ValueError("`.to` is not supported for `4-bit` models")

"""Lower precision: autocast, and a gradient scaler where it is needed."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from ddp_trainer.settings.training import Precision

_TYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context for forward passes and losses."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_TYPES[precision])


def gradient_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Return a scaler that keeps small gradients from vanishing in fp16; bf16 needs none."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None

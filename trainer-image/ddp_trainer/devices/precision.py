"""Numbers with fewer bits where they do no harm: autocast, and a scaler where gradients need it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from ddp_trainer.settings.training import Precision

_TYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes and losses."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_TYPES[precision])


def gradient_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """What keeps small gradients from vanishing in fp16; bf16 has the exponents of fp32."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None

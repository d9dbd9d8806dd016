"""The states of a rank's random number generators, which the callbacks of frameworks save."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import distributed as dist


def states() -> dict[str, Any]:
    """Return the states of this rank's generators, as Hugging Face's `Trainer` saves them."""
    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        found["cuda"] = (
            torch.cuda.get_rng_state_all() if dist.is_initialized() else torch.cuda.get_rng_state()
        )
    return found


def restore(states: dict[str, Any]) -> None:
    """Continue with the states that another process of this rank had."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if isinstance(cuda := states.get("cuda"), list):
        torch.cuda.set_rng_state_all(cuda)
    elif cuda is not None:
        torch.cuda.set_rng_state(cuda)

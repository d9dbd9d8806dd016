"""Random numbers that depend on what they are for, and on nothing that was drawn before.

Every rank seeds its generators anew for every step, from the run's seed, its rank and the step. A
rank that takes the place of a dead one therefore draws the same numbers as that one would have,
although nobody else knew its generators.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on the GPU too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # Not torch.manual_seed: that formats a stack trace for every kind of device that is not there,
    # which takes longer than a step of a small model.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


def seed_by_name(*parts: object) -> None:
    """Seed the generators with what a name of several parts, such as seed and step, stands for."""
    name = "/".join(map(str, parts))
    seed_everything(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))


def seed_step(seed: int, *, rank: int, step: int, purpose: str = "model") -> None:
    """Seed the generators for one purpose of one rank's part of one step, unlike any other.

    Each purpose has numbers of its own, so that what one draws, or draws once more when a step is
    rehearsed, shifts nothing for the others.
    """
    seed_by_name(seed, rank, step, *(() if purpose == "model" else (purpose,)))

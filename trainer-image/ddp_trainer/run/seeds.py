"""Seeds random generators by purpose, independent of earlier random numbers.

Every rank seeds its generators again for every step, from the run's seed, its rank and the step. So
a rank that replaces a dead one draws the same numbers as that one would have drawn, although no
other rank knew the state of its generators.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on the GPU too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # Not torch.manual_seed: it formats a stack trace for every kind of missing device, which takes
    # longer than a step of a small model.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of all generators at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpu = torch.cuda.get_rng_state() if has_gpu else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)


def seed_by_name(*parts: object) -> None:
    """Seed the generators from a name of several parts, such as seed and step."""
    name = "/".join(map(str, parts))
    seed_everything(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))


def seed_step(seed: int, *, rank: int, step: int, purpose: str = "model") -> None:
    """Seed the generators for one purpose in one rank's part of one step.

    Each purpose has its own numbers. So drawing more of them for one purpose, or again when a step
    is rehearsed, does not change those of others.
    """
    seed_by_name(seed, rank, step, *(() if purpose == "model" else (purpose,)))

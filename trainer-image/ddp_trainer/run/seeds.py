"""Seeds random generators by purpose, independent of earlier random numbers.

Every rank seeds its generators again for every step, from the run's seed, its rank and the step. So
a rank that replaces a dead one draws the same numbers as that one would have drawn, although no
other rank knew the state of its generators.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on the GPU too."""
    seed_all_but_torch(seed)
    # Not torch.manual_seed: it formats a stack trace for every kind of missing device, which takes
    # longer than a step of a small model.
    torch.default_generator.manual_seed(seed)


def seed_all_but_torch(seed: int) -> None:
    """Seed Python's and NumPy's generators, and torch's on the GPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
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


def next_numbers() -> list[object]:
    """Return more than 100 bits that each generator but torch's on the CPU gives next, which only
    its state decides.
    """
    numbers: list[object] = [random.getrandbits(128), np.random.random_sample(2).tobytes()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        numbers.append(torch.cuda.get_rng_state().numpy().tobytes())
    return numbers


def seed_by_name(*parts: object) -> None:
    """Seed the generators from a name of several parts, such as seed and step."""
    seed_everything(_seed_of(parts))


def seed_torch_by_name(*parts: object) -> None:
    """Seed only torch's generator on the CPU, as `seed_by_name` does: a third of the time."""
    torch.default_generator.manual_seed(_seed_of(parts))


def _seed_of(parts: Iterable[object]) -> int:
    name = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())


def seed_step(seed: int, *, rank: int, step: int, purpose: str = "model") -> None:
    """Seed the generators for one purpose in one rank's part of one step.

    Each purpose has its own numbers. So drawing more of them for one purpose, or again when a step
    is rehearsed, does not change those of others.
    """
    seed_by_name(seed, rank, step, *(() if purpose == "model" else (purpose,)))

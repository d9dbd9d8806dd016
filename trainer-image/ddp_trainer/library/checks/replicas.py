"""Decides which ranks have a faulty replica or gradients, and to which step the others can return.

Pure: `verification` exchanges the values and acts on the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple


class Replica(NamedTuple):
    """One rank's replica; its fields travel in this order."""

    fingerprint: int
    """Of its state, or of the gradients that it computed."""
    kept: int | None
    """Step of the rank's copy in memory; None: it has none."""
    is_own: bool
    """False: the rank received this state from another one, so it confirms nothing."""
    part: int = 0
    """Number of the part of the model that it is a replica of."""


def faulty(replicas: Sequence[Replica]) -> list[int]:
    """Return the ranks that differ from most others with the same part; empty: none is named."""
    prints: dict[int, Counter[int]] = {}
    for replica in replicas:
        if replica.is_own:
            prints.setdefault(replica.part, Counter())[replica.fingerprint] += 1
    common: dict[int, int] = {}
    for part, counts in prints.items():
        [(found, count)] = counts.most_common(1)
        if 2 * count > counts.total():
            common[part] = found
    return [
        rank
        for rank, replica in enumerate(replicas)
        if replica.is_own and replica.fingerprint != common.get(replica.part, replica.fingerprint)
    ]


def step_to_return_to(replicas: Sequence[Replica], without: Collection[int]) -> int | None:
    """Return the step of the copies of all ranks except some; None: they have no common one.

    Ranks without a copy receive the state from the others.
    """
    kept = {
        replica.kept
        for rank, replica in enumerate(replicas)
        if replica.kept is not None and rank not in without
    }
    return kept.pop() if len(kept) == 1 else None


def in_words(
    ranks: Sequence[int], step: int, equal_at: int | None, *, of_gradients: bool = False
) -> str:
    """Return the clause of a message: which ranks differ, after which step, and since when.

    `of_gradients`: their gradients differ, not their replicas.
    """
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    if not ranks:
        what = f"the ranks differ after step {step}, and most do not agree on one state"
    elif len(ranks) == 1:
        what = f"rank {shown} differs from the other ranks after step {step}"
    else:
        what = f"ranks {shown} differ from the other ranks after step {step}"
    since = f"last equal at step {equal_at}" if equal_at is not None else "never equal"
    return f"{what}; {'gradients ' if of_gradients else ''}{since}: flipped bits in memory"

"""Reads a loader as the training loop does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddp_trainer.data.batches import Rest


def batches_of(rest: Rest) -> Iterator[Any]:
    """Yield the batches of all remaining steps."""
    while share := rest.next_step():
        yield from (rest.batch(share, number) for number in range(len(share.read)))

"""Who trains on which samples, and in what order.

torch's DistributedSampler cannot start in the middle of an epoch; this can.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.order import Order, Places

_AT_A_TIME = 1 << 14
"""Places whose samples are looked up together: fast, and no list worth counting."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank computes of one step."""

    samples: int
    """Of the whole step, over all ranks, padding included."""
    read: list[list[int]]
    """The samples of each of this rank's batches."""
    counts: list[int]
    """How many of them count, the first ones; what a batch has beyond is computed for nothing."""

    @property
    def own(self) -> list[int]:
        """Those that count, of all batches."""
        pairs = zip(self.read, self.counts, strict=True)
        return [index for batch, count in pairs for index in batch[:count]]


def shares(
    assignment: ShardAssignment,
    order: Order,
    *,
    length: int,
    start: int,
    left: int,
    batch_size: int,
    accumulate: int = 1,
) -> Iterator[Share]:
    """One rank's shares of the steps that are left of an epoch of so many samples.

    `start`: samples that all ranks together have consumed of it. It is a property of the data and
    not of the group: an epoch begun with one world size can be ended with another. `left`: samples
    that each shard has yet to get, `accumulate` batches in a step. Shard s takes every so many-th
    sample from s on, and beyond the end goes on at the epoch's beginning: with a shard to each rank
    that is the sharding of `DistributedSampler(drop_last=False)`.
    """
    a_step = batch_size * accumulate
    a_block = a_step * max(1, _AT_A_TIME // (a_step * assignment.slots))
    for first in range(0, left, a_block):
        steps = []
        for done in range(first, min(first + a_block, left), a_step):
            a_shard = min(a_step, left - done)
            batches = [*_cut(assignment, a_shard=a_shard, batch_size=batch_size)]
            steps.append((start + done * assignment.shards, a_shard * assignment.shards, batches))
        places = [begin + places for begin, _, batches in steps for places, _ in batches]
        # Round more than once where there are fewer samples than shards.
        found = iter(order(np.concatenate(places) % length).tolist())
        for _, samples, batches in steps:
            yield Share(
                samples=samples,
                read=[[*islice(found, len(places))] for places, _ in batches],
                counts=[count for _, count in batches],
            )


def _cut(
    assignment: ShardAssignment, *, a_shard: int, batch_size: int
) -> Iterator[tuple[Places, int]]:
    """The places in a step of this rank's batches of it, and how many of each count.

    `a_shard`: samples that a shard has, in batches of `batch_size`. Each part has as many batches,
    and spreads its samples over them alike. One that gets none has the step's first once more. A
    sample alone is read twice, where others have company: their mean is the same, and batch norm
    needs two.
    """
    ends = [*range(batch_size, a_shard, batch_size), a_shard]
    usual = -(-batch_size * assignment.shards // assignment.parts)
    least = min(2, usual) if assignment.parts > assignment.shards else 1
    for slot in range(assignment.slots):
        own = range(assignment.part(slot), a_shard * assignment.shards, assignment.parts)
        for begin, end in pairwise([0, *(end * len(own) // a_shard for end in ends)]):
            places = own[begin:end]
            to_read = np.resize(places or [0], max(len(places), least))
            yield to_read, len(places) if assignment.counts(slot) else 0


class SampleTrace:
    """Writes down which samples a rank trained on at which step, when and in which pod, for whoever
    wants to check.

    A step that did not come to its end appears again, with the same samples; so do, after a resume,
    the steps since the checkpoint.
    """

    def __init__(self, path: Path | None, *, rank: int) -> None:
        """`path` gets the suffix `.rank<rank>`; None: nothing is written."""
        self._path = path
        self.rank = rank
        """The present one."""
        self._pod = os.environ.get("DDP_POD", "")

    def write(self, *, step: int, epoch: int, samples: list[int]) -> None:
        """Append one JSON line before the step is taken; `step` counts steps from 1, and the line's
        `time` is in seconds since 1970.
        """
        if self._path is not None:
            position = {"step": step, "epoch": epoch, "samples": samples}
            line = json.dumps({"time": round(time.time(), 3), "pod": self._pod, **position})
            with self._path.with_name(f"{self._path.name}.rank{self.rank}").open("a") as file:
                file.write(line + "\n")

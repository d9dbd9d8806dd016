"""Assigns samples to the steps of each rank, in order.

It can start in the middle of an epoch, unlike torch's DistributedSampler.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.order import Order, Places

_AT_A_TIME = 1 << 14
"""Number of positions that are looked up together: fast, and the list stays small."""


@dataclass(kw_only=True)
class Share:
    """The samples that one rank computes in one step."""

    samples: int
    """Samples of the whole step over all ranks, including padding."""
    read: list[list[int]]
    """The samples of each of this rank's batches."""
    counts: list[int]
    """For each batch, how many of its first samples count; results of the others are ignored."""

    own: list[int] = field(init=False)
    """The samples of all batches that count."""

    def __post_init__(self) -> None:
        pairs = zip(self.read, self.counts, strict=True)
        self.own = [index for batch, count in pairs for index in batch[:count]]


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
    """Return one rank's shares of the remaining steps of an epoch of `length` samples.

    `start`: samples of the epoch that all ranks together have consumed. It depends on the data and
    not on the group, so an epoch can begin with one world size and end with another. `left`:
    samples that each shard still gets, `accumulate` batches per step. With n shards, shard s takes
    every n-th sample starting at s, and continues at the beginning after the end of the epoch. With
    one shard per rank, this is the sharding of `DistributedSampler(drop_last=False)`.
    """
    blocks = _blocks(
        assignment,
        order,
        length=length,
        start=start,
        left=left,
        batch_size=batch_size,
        a_step=batch_size * accumulate,
    )
    return chain.from_iterable(blocks)


def _blocks(
    assignment: ShardAssignment,
    order: Order,
    *,
    length: int,
    start: int,
    left: int,
    batch_size: int,
    a_step: int,
) -> Iterator[list[Share]]:
    """Yield the shares of many steps at a time; each shard has `a_step` samples in a step."""
    a_block = a_step * max(1, _AT_A_TIME // (a_step * assignment.slots))
    for first in range(0, left, a_block):
        steps = []
        for done in range(first, min(first + a_block, left), a_step):
            a_shard = min(a_step, left - done)
            batches = [*_cut(assignment, a_shard=a_shard, batch_size=batch_size)]
            steps.append((start + done * assignment.shards, a_shard * assignment.shards, batches))
        places = [begin + places for begin, _, batches in steps for places, _ in batches]
        # The modulo wraps around more than once if there are fewer samples than shards.
        found = iter(order(np.concatenate(places) % length).tolist())
        yield [
            Share(
                samples=samples,
                read=[[*islice(found, len(places))] for places, _ in batches],
                counts=[count for _, count in batches],
            )
            for _, samples, batches in steps
        ]


def _cut(
    assignment: ShardAssignment, *, a_shard: int, batch_size: int
) -> Iterator[tuple[Places, int]]:
    """Yield the positions in a step of each of this rank's batches, and how many of them count.

    `a_shard`: samples of a shard, in batches of `batch_size`. Each part has the same number of
    batches, and spreads its samples evenly over them. A batch without samples reads the step's
    first one again. A single sample is read twice if other batches have more: their mean is the
    same, and batch norm needs two.
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
    """Records the samples, time and pod of each step of a rank, for checks.

    A step that was not completed appears again with the same samples. After a resume, so do the
    steps since the checkpoint.
    """

    def __init__(self, path: Path | None, *, rank: int) -> None:
        """`path`: gets the suffix `.rank<rank>`; None: nothing is written."""
        self.path = path
        self.rank = rank
        """The current rank."""
        self._pod = os.environ.get("DDP_POD", "")

    def write(self, *, step: int, epoch: int, samples: list[int]) -> None:
        """Append a JSON line before the step. `step` counts from 1; `time` is Unix time."""
        if self.path is not None:
            position = {"step": step, "epoch": epoch, "samples": samples}
            line = json.dumps({"time": round(time.time(), 3), "pod": self._pod, **position})
            with self.path.with_name(f"{self.path.name}.rank{self.rank}").open("a") as file:
                file.write(line + "\n")

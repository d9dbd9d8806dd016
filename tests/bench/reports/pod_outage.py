"""What the loss of a pod costs a training, told from what kernel, kubelet and ranks write down.

Pure: whoever takes a pod away collects the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

RANKS = 2


@dataclass(frozen=True)
class Begun:
    """A rank has begun a step; who does so has completed the one before."""

    at: float
    """When that was seen, in seconds of the machine's clock."""
    rank: int
    step: int


@dataclass(frozen=True)
class Moments:
    """When a pod's container was killed, and what came of it; in seconds of the machine's clock."""

    killed: float
    noticed: float
    """The other rank left the broken group."""
    reported: float
    """The kubelet had told the API server of the end."""
    created: float
    """The pod that takes the place of the lost one existed."""
    container: float
    """The first process of that pod began."""
    ready: float
    """The rank began, as a process that had all of torch."""


@dataclass(frozen=True)
class Outage:
    """Seconds without training, one after the other, and what was lost."""

    kubelet: float
    operator: float
    pod: float
    """Scheduler, kubelet and container runtime start the new pod."""
    python: float
    """Launcher and interpreter come up, and torch is imported."""
    trainer: float
    """The new rank meets the other one, is given its state, and both begin a step that none had
    begun before."""
    noticed: float
    """From the kill to the moment when the other rank knew."""
    steps_again: int
    """Steps that were complete and had to be done again."""

    @property
    def total(self) -> float:
        """From the kill to a step on all ranks that none had begun before."""
        return self.kubelet + self.operator + self.pod + self.python + self.trainer

    @property
    def own(self) -> float:
        """What is neither Kubernetes' nor the new process's start."""
        return self.operator + self.trainer


def outage(moments: Moments, begun: Sequence[Begun]) -> Outage:
    """Say what it cost; of `begun`, what was seen before the new rank began is the old group's.

    Raises:
        ValueError: some rank has begun nothing new.
    """
    before = max(one.step for one in begun if one.at < moments.ready)
    after = [one for one in begun if one.at >= moments.ready]
    trained = max(
        min(one.at for one in after if one.rank == rank and one.step > before)
        for rank in range(RANKS)
    )
    return Outage(
        kubelet=moments.reported - moments.killed,
        operator=moments.created - moments.reported,
        pod=moments.container - moments.created,
        python=moments.ready - moments.container,
        trainer=trained - moments.ready,
        noticed=moments.noticed - moments.killed,
        steps_again=max(before - min(one.step for one in after), 0),
    )


def steps_in(lines: bytes, *, rank: int, at: float) -> list[Begun]:
    """What whole lines of a rank's `--trace-samples` file say, seen at some time."""
    return [Begun(at, rank, json.loads(line)["step"]) for line in lines.splitlines()]


def time_of_line(log: str, text: str, *, since: float) -> float:
    """When a container wrote the first line with `text`, by `kubectl logs --timestamps`.

    Raises:
        ValueError: it wrote none since then.
    """
    for line in log.splitlines():
        time, _, words = line.partition(" ")
        if text in words and (at := datetime.fromisoformat(time).timestamp()) >= since:
            return at
    raise ValueError(f"no line {text!r} since {since:.3f}: {log[-1000:]}")

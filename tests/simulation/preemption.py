"""A queue of Kueue with two priority classes, in which urgent jobs preempt others.

It follows pkg/scheduler/preemption of https://github.com/kubernetes-sigs/kueue (0.17) for one
ClusterQueue with `withinClusterQueue: LowerPriority`: it takes running jobs of a lower effective
priority, first those with the lowest, and of these first the one admitted last. It then gives back
those that were not needed. Jobs that wait have no boost.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ddp_operator.job.status.preemption import priority_boost

_HOUR: Final = 3600.0
_URGENT: Final = 1000
"""Distance between the two priority classes."""
_START_SECONDS: Final = 300.0
"""How long pods take to start and to load a checkpoint."""
_ROUND_SECONDS: Final = 30.0
"""The operator writes boosts that are so old at most."""


@dataclass(eq=False)
class Job:
    """A job, with its progress in seconds of training."""

    number: int
    submitted: float
    gpus: int
    seconds: float
    checkpoint_seconds: float
    priority: int
    saved: float = 0.0
    admitted: float = 0.0
    preempted: list[float] = field(default_factory=list)
    lost: float = 0.0
    """GPU-seconds of repeated work, and of starting again."""
    ended: float = 0.0

    @property
    def end(self) -> float:
        """When it completes if it is not preempted."""
        return self.admitted + _START_SECONDS + self.seconds - self.saved

    def unsaved(self, now: float) -> float:
        """Return the seconds of training that a preemption would lose."""
        return self._trained(now) % self.checkpoint_seconds

    def _trained(self, now: float) -> float:
        return max(now - self.admitted - _START_SECONDS, 0.0)

    def preempt(self, now: float) -> None:
        """Go back to the last checkpoint."""
        unsaved = self.unsaved(now)
        self.saved += self._trained(now) - unsaved
        self.lost += (unsaved + _START_SECONDS) * self.gpus
        self.preempted.append(now)


@dataclass(frozen=True)
class Result:
    """Losses and delays of the jobs of one history."""

    lost_gpu_hours: float
    preemptions: int
    most_preemptions: int
    """Of one job."""
    longest_wait_hours: float
    """Longest time from a job's submission to its end, beyond the time that it trains."""
    used_gpu_hours: float


def jobs(seed: int, *, number: int = 1000, urgent: float = 0.15) -> list[Job]:
    """Return jobs of many sizes, lengths and checkpoint intervals, in order of submission."""
    chance = random.Random(seed)
    made, now = [], 0.0
    for each in range(number):
        now += chance.expovariate(1 / 560.0)
        made.append(
            Job(
                number=each,
                submitted=now,
                gpus=chance.choices((1, 8, 16, 32, 64, 128), (15, 35, 20, 15, 10, 5))[0],
                seconds=chance.uniform(0.5, 12.0) * _HOUR,
                checkpoint_seconds=chance.choice((300.0, 900.0, 1800.0, _HOUR, 4 * _HOUR)),
                priority=_URGENT if chance.random() < urgent else 0,
            )
        )
    return made


class Cluster:
    """A quota of GPUs, with boosts of at most `most`; 0: none."""

    def __init__(self, *, gpus: int, most: int) -> None:
        self._free = gpus
        self._most = most
        self._running: set[Job] = set()
        self._waiting: list[tuple[int, float, int, Job]] = []

    def run(self, made: list[Job]) -> Result:
        """Run jobs to their end."""
        events = [(job.submitted, job.number, job) for job in made]
        heapq.heapify(events)
        while events:
            now, _, job = heapq.heappop(events)
            if job in self._running:
                if abs(job.end - now) > 1e-3:
                    continue  # it was preempted since
                self._running.discard(job)
                self._free += job.gpus
                job.ended = now
            elif job.submitted == now:
                heapq.heappush(self._waiting, (-job.priority, now, job.number, job))
            else:
                continue
            for started in self._schedule(now):
                heapq.heappush(events, (started.end, started.number, started))
        return _result(made)

    def _schedule(self, now: float) -> Iterator[Job]:
        passed = []
        while self._waiting:
            entry = heapq.heappop(self._waiting)
            job = entry[-1]
            for other in self._victims(job, now):
                other.preempt(now)
                self._running.discard(other)
                self._free += other.gpus
                again = (-other.priority, other.submitted, other.number, other)
                heapq.heappush(self._waiting, again)
            if job.gpus > self._free:
                passed.append(entry)
                continue
            self._free -= job.gpus
            job.admitted = now
            self._running.add(job)
            yield job
        for entry in passed:
            heapq.heappush(self._waiting, entry)

    def _victims(self, job: Job, now: float) -> list[Job]:
        """Return the jobs that make room for another one; none if they cannot."""
        if job.gpus <= self._free or not job.priority:
            return []
        seen = now // _ROUND_SECONDS * _ROUND_SECONDS
        ranked = sorted(
            (other.priority + self._boost(other, seen), -other.admitted, other.number, other)
            for other in self._running
        )
        free, taken = self._free, []
        for priority, *_, other in ranked:
            if free >= job.gpus or priority >= job.priority:
                break
            taken.append(other)
            free += other.gpus
        if free < job.gpus:
            return []
        for other in taken[::-1]:
            if free - other.gpus >= job.gpus:
                free -= other.gpus
                taken.remove(other)
        return taken

    def _boost(self, job: Job, now: float) -> int:
        if now < job.admitted:
            return 0
        recent = sum(1 for at in job.preempted if now - at < 24 * _HOUR)
        return priority_boost(job.unsaved(now) * job.gpus, evictions=recent, most=self._most)


def _result(made: list[Job]) -> Result:
    assert all(job.ended for job in made)
    return Result(
        lost_gpu_hours=sum(job.lost for job in made) / _HOUR,
        preemptions=sum(len(job.preempted) for job in made),
        most_preemptions=max(len(job.preempted) for job in made),
        longest_wait_hours=max(job.ended - job.submitted - job.seconds for job in made) / _HOUR,
        used_gpu_hours=sum(job.seconds * job.gpus for job in made) / _HOUR,
    )

"""A simulation of what node failures cost a training on 1,024 nodes, for each way to recover.

Nodes fail at random, at published rates. The cost of a failure is a sum of times that were measured
on small machines, and of assumptions. Each has its source below.
"""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

DAY_SECONDS: Final = 86_400.0
NODES: Final = 1024
DAYS: Final = 365
"""Enough failures that another seed gives the same picture."""
SEED: Final = 0

RATES: Final[Mapping[str, float]] = {
    "RSC-2": 2.34e-3,
    "Llama 3": 419 / 54 / 2048,
    "RSC-1": 6.50e-3,
}
"""Failures per node and day. RSC-1 and RSC-2, Meta's research clusters of A100 GPUs: Kokolis et
al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025
(arXiv 2410.21680). Llama 3: 419 unexpected interruptions in 54 days on 16,384 H100 GPUs, eight in a
node: "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4.
"""


@dataclass(frozen=True)
class Costs:
    """Duration of each part of a recovery and of saves, in seconds."""

    notice: float = 10.0
    """Until a failure is noticed: the trainer's `--heartbeat-timeout-seconds`, for all ways."""
    node: float = 600.0
    """Until a new node has its images, if there is no spare node. An assumption."""
    pod: float = 5.0
    """Until a container runs on a node that has the image. An assumption; measured: about 1 s."""
    process: float = 20.0
    """Until a new process has torch and its GPU. Measured: 2-3 s for torch; the GPU is assumed."""
    meet: float = 12.2
    """Until 1,024 members have met. Measured by `trainer-rendezvous`, on two cores."""
    nccl: float = 30.0
    """Until NCCL's communicators work. An assumption."""
    state: float = 10.0
    """Until a new process has a survivor's state. An assumption: 10 GB at 1 GB/s."""
    load: float = 60.0
    """Until all processes have read a checkpoint. An assumption."""
    gang: float = 9.7
    """Until 1,000 pods are deleted and created. Measured, on two cores."""
    keep_alive: float = 15.0
    """Until torchrun's rendezvous counts an agent as dead: three times its interval of 5 s."""
    save_every: float = 600.0
    """An assumption."""
    save: float = 5.0
    """How long a save delays training. An assumption."""


@dataclass(frozen=True)
class Way:
    """A way to continue training after a lost node."""

    name: str
    from_memory: bool
    """False: from the last checkpoint."""
    resume: float
    """Seconds to the next step after all pods have processes."""
    spares: bool = False
    """Spare nodes run pods with started processes."""
    shrinks: bool = False
    """Training continues without the lost pod until another one joins. Its speed is proportional to
    the number of pods."""
    before_pods: float = 0.0
    """Seconds after the failure is noticed before a new pod can start."""


def ways(costs: Costs) -> tuple[Way, ...]:
    """Return all ways, with their times."""
    meet = costs.meet + costs.nccl
    from_memory = meet + costs.state
    from_checkpoint = meet + costs.load
    return (
        Way("spares", from_memory=True, resume=from_memory, spares=True),
        Way("elastic", from_memory=True, resume=from_memory, shrinks=True),
        Way("Pod", from_memory=True, resume=from_memory),
        Way("InPlace", from_memory=False, resume=from_checkpoint),
        Way("torchrun", from_memory=False, resume=from_checkpoint, before_pods=costs.keep_alive),
        Way("Gang", from_memory=False, resume=from_checkpoint, before_pods=costs.gang),
    )


def failures(
    rate: float, *, nodes: int = NODES, days: float = DAYS, seed: int = SEED
) -> list[float]:
    """Return the times of failures, in seconds; `rate`: per node and day."""
    draw, times, now = random.Random(seed), [], 0.0
    while rate and (now := now + draw.expovariate(rate * nodes / DAY_SECONDS)) < days * DAY_SECONDS:
        times.append(now)
    return times


@dataclass
class _Training:
    """A training, between two events."""

    way: Way
    costs: Costs
    nodes: int
    standing_by: int
    resumes: float = 0.0
    """When training resumes, or resumed."""
    waiting: int = 0
    """Missing pods that stop the training."""
    missing: int = 0
    """Missing pods while training continues."""
    done: float = 0.0
    """Seconds of training with all nodes."""
    events: list[tuple[float, str]] = field(default_factory=list)

    def train(self, now: float, *, breaks: bool) -> None:
        """Add the work since `resumes`; if training breaks, only what survives."""
        here = self.nodes - self.missing
        if self.waiting or not here or now <= self.resumes:
            return
        saves, rest = divmod(now - self.resumes, self.costs.save_every + self.costs.save)
        unsaved = 0.0 if breaks and not self.way.from_memory else min(rest, self.costs.save_every)
        self.done += here / self.nodes * (saves * self.costs.save_every + unsaved)

    def fail(self, now: float) -> None:
        """Lose a node of the group."""
        self.train(now, breaks=True)
        known = now + self.costs.notice
        stands_by = self.standing_by > 0
        if stands_by:
            self.standing_by -= 1
            heapq.heappush(self.events, (known + self.costs.node, "stands by"))
        starts = max(known + self.way.before_pods, known + (not stands_by) * self.costs.node)
        started = 0.0 if self.way.spares and stands_by else self.costs.pod + self.costs.process
        heapq.heappush(self.events, (starts + started, "joins"))
        if self.way.shrinks:
            self.missing += 1
            self.resumes = known + self.costs.meet + self.costs.nccl
        else:
            self.waiting += 1

    def join(self, now: float) -> None:
        """Let a new pod replace a lost one."""
        if self.way.shrinks:
            self.train(now, breaks=False)
            self.missing -= 1
        else:
            self.waiting -= 1
        self.resumes = max(now + self.way.resume, self.resumes)


def goodput(
    way: Way,
    costs: Costs,
    failed: Sequence[float],
    *,
    nodes: int = NODES,
    stand_by: int = 0,
    days: float = DAYS,
) -> float:
    """Return the work done, as a share of the work without failures and saves.

    Spare nodes are not counted until they replace a lost node.
    """
    training = _Training(way, costs, nodes, stand_by)
    training.events = [(time, "fails") for time in failed]
    heapq.heapify(training.events)
    end = days * DAY_SECONDS
    while training.events and training.events[0][0] < end:
        now, what = heapq.heappop(training.events)
        match what:
            case "fails":
                training.fail(now)
            case "joins":
                training.join(now)
            case _:
                training.standing_by += 1
    training.train(end, breaks=False)
    return training.done / end

"""A training that completes a step every so many seconds while its group is whole.

In other histories steps happen when an action says so. Here they take time, and rank 0 reports when
they were completed, as the bundled trainer does. Where processes form their group by themselves,
the others keep their state in memory; elsewhere all resume from the newest checkpoint.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from ddp_operator.api.constants import LABEL_ATTEMPT
from ddp_operator.engine.trainers.trainers import NOTHING_YET
from ddp_operator.job.membership.world import members
from ddp_operator.ports import Manifest

from tests.simulation.clock import BEGINNING
from tests.simulation.simulation import Simulation
from tests.simulation.stopwatch import Times
from tests.simulation.world.kubelet import is_deleting, is_running, node_of
from tests.simulation.world.launchers import has_launcher, joins, restarts_in_place
from tests.simulation.world.training import Training


@dataclass
class Pace:
    """Seconds that things take."""

    step: float
    form: float
    """From the start of all processes to the formed group."""
    first_step: float
    """How much longer the first step takes."""
    save: float
    """From a step to its complete checkpoint; training continues meanwhile."""
    every: int
    """Steps from one checkpoint to the next."""


@dataclass
class _Group:
    key: object
    pods: Sequence[str]
    """UIDs, by node rank."""
    formed: float
    resumed: int
    step: int
    next_at: float
    hangs: bool = False

    @property
    def leader(self) -> str:
        return self.pods[0]


@dataclass
class PacedTraining(Training):
    """Implements what `Training` tells the operator; `observe` follows the pods."""

    pace: Pace
    times: Times
    replicas: int
    saved: tuple[int, float] = (0, 0.0)
    """Step and time of the newest complete checkpoint."""
    group: _Group | None = None
    first_steps: list[tuple[int, float]] = field(default_factory=list)
    """Number and time of each group's first step."""
    counts: bool = True
    """True if it reports how long training took; earlier releases and scripts do not."""
    has_volume: bool = True
    """True if it remembers the first steps of earlier processes."""
    leaving: dict[str, bool] = field(default_factory=dict)
    """UIDs of deleted pods that train on until they end or another group forms; true: the group
    saves when they end.
    """
    unseen_until: float = 0.0
    """Until then the group trains on in pods that the API server does not know any more."""
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of groups, by attempt and generation."""
    restored: int = 0
    """How often a group continued from memory."""
    _saving: list[tuple[int, float]] = field(default_factory=list)
    _memory: dict[str, int] = field(default_factory=dict)
    """Step of the processes in each pod that is left of a group, by its UID."""
    _told: dict[str, dict[str, Any]] = field(default_factory=dict)
    _trained: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    """How long training to each step took, in the state after that step."""
    _simulation: Simulation | None = None

    def follow(self, simulation: Simulation) -> None:
        """Train in this simulation."""
        self._simulation = simulation

    @property
    def simulation(self) -> Simulation:
        assert self._simulation is not None
        return self._simulation

    @property
    def is_training(self) -> bool:
        """Return whether the group completes steps."""
        return self.group is not None and self.times.steps[-1:] > [(self.group.formed, 0)]

    def observe(self) -> None:
        """See which pods form a group now; the one before ends where another does."""
        simulation, now = self.simulation, self.simulation.clock.seconds
        self._train_until(now)
        if now < self.unseen_until:
            return
        members = self._members()
        key = [self._identity(pod) for pod in members]
        if self.group is not None and key != self.group.key:
            self.stop()
            self.times.interruptions.append(now)
        alive = {pod["metadata"]["uid"] for pod in simulation.pods() if simulation.trains(pod)}
        self._memory = {uid: known for uid, known in self._memory.items() if uid in alive}
        if self.group is None and members:
            resumed = max([self.saved[0], *self._remembered(members)])
            self.restored += resumed > self.saved[0]
            formed = now + self.pace.form
            first = formed + self.pace.first_step + self.pace.step
            pods = [pod["metadata"]["uid"] for pod in members]
            self.group = _Group(key, pods, formed, resumed, resumed, first)

    def form_again(self) -> None:
        """Ranks are lost, and restart in their pods."""
        self.observe()
        if self.group is not None:
            self.stop()
            self.times.interruptions.append(self.simulation.clock.seconds)
            self.observe()

    def save_and_stop(self) -> None:
        """All ranks save, and end."""
        if self.group is not None:
            self.save()
            self.stop()
        self._memory.clear()

    def save(self) -> None:
        """The group saves at once."""
        now = self.simulation.clock.seconds
        self._train_until(now)
        assert self.group is not None
        self.saved = self.group.step, now

    def is_left(self, pod: Manifest) -> bool:
        """Return whether a pod waits for others, and its processes know how far they were."""
        return self.group is None and pod["metadata"]["uid"] in self._memory

    def save_alone(self, pod: Manifest) -> None:
        """The pod of rank 0 saves what it has, after its group was lost."""
        step = self._memory[pod["metadata"]["uid"]]
        self.saved = max(self.saved, (step, self.simulation.clock.seconds))

    def leave(self, pod: Manifest) -> None:
        """A deleted pod ends, perhaps once its group has saved."""
        uid = pod["metadata"]["uid"]
        if self.group is not None and uid in self.group.pods and self.leaving.get(uid):
            self.save()

    def stop(self) -> None:
        """The group is broken; what its processes know stays in their memory."""
        assert self.group is not None
        if self.simulation.clock.seconds >= self.group.formed:
            self._publish(self.group)
        self._memory.update(dict.fromkeys(self.group.pods, self.group.step))
        self._saving.clear()
        self.group = None

    def report(self, pod: Manifest) -> bytes | str:
        """Return the answer of a pod's trainer to GET /status."""
        uid, now = pod["metadata"]["uid"], self.simulation.clock.seconds
        self._train_until(now)
        if self.group is not None and uid == self.group.leader and now >= self.group.formed:
            self._publish(self.group)
        return json.dumps(self._told[uid]).encode() if uid in self._told else NOTHING_YET

    def _publish(self, group: _Group) -> None:
        """Write what rank 0's launcher answers from now on."""
        made = group.step > group.resumed
        before = self._told.get(group.leader, {}).get("lastStepTime")
        last = _text(self.times.steps[-1][0]) if made else before
        self._told[group.leader] = {
            "step": group.step,
            "resumed": {"step": group.resumed, "time": _text(group.formed)},
            **({"firstSteps": self._first_steps()} if self.has_volume else {}),
            **({"lastStepTime": last} if last else {}),
            **({"trainedSeconds": self._trained[group.step]} if made and self.counts else {}),
            **({"checkpoint": _at(*self.saved)} if self.saved[0] else {}),
        }

    def _first_steps(self) -> list[dict[str, Any]]:
        return [_at(*each) for each in self.first_steps[-8:]]

    def _train_until(self, now: float) -> None:
        group, pace = self.group, self.pace
        while group is not None and group.next_at <= now and not group.hangs:
            group.step += 1
            self.times.steps.append((group.next_at, group.step))
            is_first = group.step == group.resumed + 1
            if is_first:
                self.first_steps.append(self.times.steps[-1][::-1])
            took = 0.0 if is_first else pace.step
            self._trained[group.step] = self._trained[group.step - 1] + took
            if group.step % pace.every == 0:
                self._saving.append((group.step, group.next_at + pace.save))
            group.next_at += pace.step
        while self._saving and self._saving[0][1] <= now:
            self.saved = self._saving.pop(0)

    def _members(self) -> Sequence[Manifest]:
        """Return the pods of a whole group, by their node ranks; none if it is not whole."""
        launchers = self.simulation.launchers
        found: dict[tuple[str, int], dict[int, Manifest]] = {}
        for pod in self.simulation.pods():
            one = launchers.of(pod)
            is_gone = is_deleting(pod) and pod["metadata"]["uid"] not in self.leaving
            if is_gone or not is_running(pod) or not one.works or one.node_rank is None:
                continue
            where = pod["metadata"]["labels"][LABEL_ATTEMPT], one.generation
            found.setdefault(where, {})[one.node_rank] = pod
        for where in sorted(found, reverse=True):
            size = self._size_of(*where)
            if set(found[where]) == set(range(size)):
                return [found[where][rank] for rank in range(size)]
        return ()

    def _size_of(self, attempt: str, generation: int) -> int:
        """Return the size of a group, as its launchers know it."""
        job = self.simulation.job()
        world = job.status.world if job else None
        if job and world and (str(job.status.attempt), world.generation) == (attempt, generation):
            self.sizes[attempt, generation] = len(members(job))
        return self.sizes.get((attempt, generation), self.replicas)

    def _identity(self, pod: Manifest) -> tuple[str, int]:
        return pod["metadata"]["uid"], self.simulation.launchers.of(pod).generation

    def _remembered(self, members: Sequence[Manifest]) -> list[int]:
        return [
            self._memory[uid]
            for pod in members
            if (uid := pod["metadata"]["uid"]) in self._memory
            if has_launcher(pod) and joins(pod) and not restarts_in_place(pod)
        ]


def all_placed(pods: Sequence[Manifest], replicas: int) -> bool:
    """Return whether as many pods as a group needs have nodes."""
    return sum(bool(node_of(pod)) and not is_deleting(pod) for pod in pods) >= replicas


def paces(random: Random) -> Pace:
    """Return a pace of some training."""
    return Pace(
        step=random.choice((0.4, 1.0, 1.7)),
        form=random.choice((random.uniform(1, 8), random.uniform(20, 60))),
        first_step=random.uniform(0, 4),
        save=random.uniform(0, 2),
        every=random.choice((10, 60, 300)),
    )


def _at(step: int, at: float) -> dict[str, Any]:
    return {"step": step, "time": _text(at)}


def _text(at: float) -> str:
    return (BEGINNING + timedelta(seconds=at)).isoformat(timespec="milliseconds")

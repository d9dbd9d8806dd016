"""Jobs with pods that receive other assignments while they train."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_trainer.process_group.assignment import Assignment, AssignmentFile

from tests.trainer.support.pods import JOB_UID, Job, Pod, until

EPOCHS = 2
SAMPLES = 1437
ADDRESS = "127.0.0.1"


@dataclass
class World:
    """The pods of a job by the number of their slot, and the members of its group."""

    of: Job
    flags: Sequence[str] = ()
    slots: dict[int, Pod] = field(default_factory=dict)
    generation: int = 0
    members: Sequence[int] = ()
    broken: bool = False

    def start(self, slot: int, *, node_rank: int, nodes: int) -> Pod:
        """Start a pod with the assignment that its launcher received."""
        self.of.nodes = nodes
        self.of.extra_environment = {
            **self.of.extra_environment,
            "DDP_STATUS_FILE": str(self._status_file(slot)),
            "DDP_GENERATION": str(self.generation),
        }
        self.slots[slot] = self.of.start(node_rank, *self.flags)
        return self.slots[slot]

    def start_all(self, nodes: int) -> None:
        """Start a job of this many pods; a pod's node rank is its slot."""
        for slot in range(nodes):
            self.start(slot, node_rank=slot, nodes=nodes)

    def change(
        self, members: Sequence[int], *, tell: Sequence[int] | None = None, broken: bool = False
    ) -> None:
        """Make these slots the group, in the order of their node ranks.

        `tell`: the pods that receive the assignment; None: all pods. `broken`: the assignment says
        that the previous group has lost a pod.
        """
        self.generation += 1
        self.members = members
        self.broken = broken
        self.tell([*self.slots] if tell is None else tell)

    def tell(self, slots: Sequence[int]) -> None:
        """Send the newest assignment to these pods."""
        for slot in slots:
            place = Assignment(
                job_uid=JOB_UID,
                attempt=0,
                generation=self.generation,
                node_rank=self.members.index(slot) if slot in self.members else None,
                nodes=len(self.members),
                master_addr="localhost",
                master_address=ADDRESS,
                broken=self.broken,
            )
            AssignmentFile(self._status_file(slot)).write(place)

    def _status_file(self, slot: int) -> Path:
        folder = self.of.folder / f"slot-{slot}"
        folder.mkdir(exist_ok=True)
        return folder / "status.json"


FLAGS = ("--epochs", str(EPOCHS), "--step-delay-seconds", "0.05", "--max-reforms", "0")
"""With these flags a broken group is not formed again, but another group is."""


def assert_each_step_once(of: Job, *groups: tuple[int, int]) -> None:
    """Check that each epoch had every sample once, except for padding, in steps taken once.

    `groups`: the number of ranks and the last step of each group.
    """
    trained: Counter[int] = Counter()
    first = 1
    for ranks, last in groups:
        for rank in range(ranks):
            begun = dict(of.begun_by(rank))
            for step in range(first, last + 1):
                trained.update(begun[step])
        first = last + 1
    assert set(trained) == set(range(SAMPLES))
    assert min(trained.values()) == EPOCHS
    padding = sum(trained.values()) - EPOCHS * SAMPLES
    assert padding < EPOCHS * max(ranks for ranks, _ in groups), (
        "padding makes ranks equal, and no more"
    )


def assert_ends_alike(pods: Sequence[Pod]) -> None:
    """Check that all ranks that trained to the end hold the same state, to the bit."""
    found = {re.findall("ends with (.*)", pod.log)[-1] for pod in pods}
    assert len(found) == 1, found


def step_of_change(pod: Pod) -> int:
    """Return the last step before the group of this pod changed."""
    [step] = re.findall(r"continuing from memory at step (\d+)", pod.log)
    return int(step)


def wait_for_step(world: World, step: int) -> None:
    """Wait until rank 0 begins this step or a later one; pods may have left meanwhile."""

    def reached() -> bool:
        assert world.slots[0].process.poll() is None, world.slots[0].log
        return max(world.of.begun_steps_of(0), default=0) >= step

    until(reached, f"step {step}")


def resize(world: World, *sizes: int) -> None:
    """Give the group these numbers of pods, one after another, and wait for its end."""
    step, pods = 4, len(world.slots)
    for size in sizes:
        wait_for_step(world, step)
        world.change(range(size), tell=[])
        for slot in range(pods, size):
            world.start(slot, node_rank=slot, nodes=size)
        world.tell([*world.slots])
        for slot in range(size, pods):
            left = world.slots.pop(slot)
            assert left.wait() == 0, left.log
        step, pods = max(world.of.begun_steps_of(0)) + 4, size
    for pod in world.slots.values():
        assert pod.wait() == 0, pod.log
    assert world.slots[0].log.count("the group changes from") == len(sizes)


def losses_of(of: Job) -> dict[int, float]:
    """Return the loss of each step."""
    lines = map(json.loads, (of.checkpoints / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}

"""Jobs lose ranks and pods again and again, and resume from the memory of their pods alone.

They end as runs that nothing happened to, to the bit. A third job has a sharded model.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from tests.chaos import memory_training, sharded_account, sharded_training
from tests.chaos.conftest import Victim, explained, wait_until_all_succeed
from tests.chaos.disturbances import Chaos
from tests.chaos.journal import Journal
from tests.chaos.memory_account import Loss, MemoryAccount, Start, ends, lines
from tests.chaos.memory_training import CALM, DIE_IN_SAVE
from tests.chaos.record import MemoryRecord, recording_memory
from tests.chaos.schedule import Kind
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, script_job
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.losses import running_pod

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(1800)]

STEPS: Final = 800
"""Far more than the jobs complete before the last disturbance."""
RANKS: Final = 5
ROUNDS: Final = 3
FINISH_SECONDS: Final = 600.0
POD_LOSSES: Final = (Kind.KILL_CONTAINER, Kind.DELETE_POD, Kind.FORCE_DELETE_POD)
"""The pod's memory is lost, too."""
LOSSES: Final = (Kind.KILL_RANK, Kind.KILL_IN_SAVE, *POD_LOSSES)


@dataclass(frozen=True)
class Shape:
    """The pods of a job."""

    name: str
    pods: int
    copies: int
    """Copies of each snapshot in other pods."""
    ranks: int = RANKS
    overrides: Sequence[Any] = ()


ONE_COPY: Final = Shape(
    "one-copy", pods=3, copies=1, overrides=[{"indexes": ["0-1"], "nprocPerNode": 2}]
)
TWO_COPIES: Final = Shape("two-copies", pods=5, copies=2)
SHARDED: Final = Shape("sharded", pods=3, copies=1, ranks=3)


def test_random_losses_change_no_bit(victim: Victim, namespace: Kubectl, journal: Journal) -> None:
    with (
        explained(journal, victim.environment, namespace),
        recording_memory(victim.node.client, namespace.namespace) as record,
    ):
        undisturbed, calm = (
            _undisturbed(victim.environment, namespace, ranks, script)
            for ranks, script in ((RANKS, memory_training), (SHARDED.ranks, sharded_training))
        )
        one, two = jobs = [
            _start(victim.environment, namespace, shape) for shape in (ONE_COPY, TWO_COPIES)
        ]
        sharded = _start(victim.environment, namespace, SHARDED, sharded_training)
        for each in jobs:
            each.job.wait_until_launcher_answers()
            each.wait_for_complete_step(after=-1)
        chaos = Chaos(victim.node, namespace, random.Random(journal.seed), journal)
        _disturb(chaos, one, two, sharded)
        journal.note("calm from now on")
        for each in (*jobs, sharded):
            (each.folder / CALM).touch()
        wait_until_all_succeed(
            [each.job for each in (undisturbed, calm, one, two, sharded)],
            within_seconds=FINISH_SECONDS,
        )
        expected = ends(undisturbed.folder)
        assert len(expected) == RANKS
        accounts = [each.account(journal, record) for each in jobs]
        complaints = []
        for each, account in zip(jobs, accounts, strict=True):
            name = each.job.name
            journal.note(f"{name}: resumed {account.resumed}, at least {account.bounds}")
            complaints += [f"{name}: {text}" for text in account.complaints()]
            if (found := ends(each.folder)) != expected:
                complaints.append(f"{name} ended with {found} and not with {expected}")
        complaints += sharded_account.complaints(sharded.folder, calm.folder)
        assert not complaints, "\n".join(complaints)
        # Two losses at once leave one snapshot of three.
        assert sum(step > 0 for step in accounts[1].bounds.values()) >= ROUNDS


def _disturb(chaos: Chaos, one: _Training, two: _Training, sharded: _Training) -> None:
    """Disturb the jobs in rounds; each round begins when all have newer complete steps.

    One job loses a rank or a pod, sometimes another one while it recovers; the other loses two. The
    sharded one loses a rank or a pod, or in some rounds two ranks, and only pods have their parts.
    """
    draw = chaos.random
    kinds = draw.sample(LOSSES, len(LOSSES))
    doubled = draw.sample(range(ROUNDS), 2)
    without_operator = draw.randrange(ROUNDS)
    for number in range(ROUNDS):
        time.sleep(draw.uniform(0.0, memory_training.INTERVAL * memory_training.STEP_SECONDS))
        sharded.wait_for_complete_sharded_step(after=[0] * RANKS)
        before = [each.generation() for each in (one, two)]
        taken = sharded.steps_taken()
        if number == without_operator:
            chaos.disturb(Kind.KILL_OPERATOR)
        pods = draw.sample(range(two.shape.pods), 2)
        two.lose(chaos, draw.choice(LOSSES), pods[0])
        one.lose(chaos, kinds[number % len(kinds)], draw.randrange(one.shape.pods))
        two.lose(chaos, draw.choice(POD_LOSSES), pods[1])
        if number in doubled:
            slots = draw.sample(range(sharded.shape.pods), 2)
            victims = [running_pod(sharded.job, slot) for slot in slots]
            with ThreadPoolExecutor() as threads:
                list(threads.map(lambda pod: chaos.disturb(Kind.KILL_RANK, pod), victims))
        else:
            kind = draw.choice((Kind.KILL_RANK, *POD_LOSSES))
            sharded.lose(chaos, kind, draw.randrange(sharded.shape.pods))
        if number in doubled:
            time.sleep(draw.uniform(0.0, 8.0))
            one.lose(chaos, draw.choice(LOSSES), draw.randrange(one.shape.pods))
        for each, generation in zip((one, two), before, strict=True):
            each.wait_for_complete_step(after=generation)
        sharded.wait_for_complete_sharded_step(after=taken)


@dataclass(frozen=True)
class _Training:
    """A job with `memory_training.py`, or `sharded_training.py`."""

    job: Job
    shape: Shape
    folder: Path
    """Its ranks note there what they do."""

    def generation(self) -> int:
        """Return the newest generation that all ranks have started; -1 before the first."""
        counts = Counter(start.generation for start in Start.all_in(self.folder))
        return max((one for one, ranks in counts.items() if ranks == RANKS), default=-1)

    def steps_taken(self) -> list[int]:
        """Return how many steps each rank of a sharded training has noted."""
        return [len(lines(self.folder, f"steps.{rank}")) for rank in range(self.shape.ranks)]

    def wait_for_complete_sharded_step(self, *, after: Sequence[int]) -> None:
        """Wait until all ranks have noted more steps, and a later one is complete in memory."""

        def look() -> bool:
            taken = self.steps_taken()
            record = self.job.status().memory_checkpoint
            if record is None or record.step is None:
                return False
            if any(now < before + 5 for now, before in zip(taken, after, strict=False)):
                return False
            since = lines(self.folder, "steps.0")[after[0]]
            return record.step > int(since["step"])

        def describe() -> str:
            return f"{self.job.status()} {self.steps_taken()}, before {after}"

        wait_for(look, what=f"a newer complete step of {self.job.name}", describe=describe)

    def lose(self, chaos: Chaos, kind: Kind, slot: int) -> None:
        """Lose a rank or the pod of a slot."""
        if kind is not Kind.KILL_IN_SAVE:
            chaos.disturb(kind, running_pod(self.job, slot))
            return
        rank, number = chaos.random.randrange(RANKS), len(chaos.journal.deeds)
        order = self.folder / f"{DIE_IN_SAVE}.{rank}.{number}"
        part = self.folder / "order"  # a rank may look at this moment
        part.write_text(str(chaos.random.uniform(0.0, 0.05)))
        part.rename(order)
        chaos.journal.did(kind, job=self.job.name)

    def wait_for_complete_step(self, *, after: int) -> None:
        """Wait until a group of a later generation has a complete step of its own.

        It is a later one than its first: times in the status have no fractions of a second.
        """

        def look() -> bool:
            generation, starts = self.generation(), Start.all_in(self.folder)
            resumed = next((one.step for one in starts if one.generation == generation), 0)
            record = self.job.status().memory_checkpoint
            return (
                generation > after
                and record is not None
                and (record.restored_step or 0) == resumed
                and (record.step or 0) > resumed + 2 * memory_training.INTERVAL
            )

        def describe() -> str:
            return f"{self.job.status()} {Start.all_in(self.folder)[-RANKS:]}"

        wait_for(look, what=f"a newer complete step of {self.job.name}", describe=describe)

    def account(self, journal: Journal, record: MemoryRecord) -> MemoryAccount:
        """Return all that happened to it."""
        losses = [
            Loss(journal.opened + deed.seconds, deed.pod)
            for deed in journal.deeds
            if deed.job == self.job.name and deed.kind in POD_LOSSES
        ]
        return MemoryAccount(
            copies=self.shape.copies,
            ranks=RANKS,
            starts=Start.all_in(self.folder),
            losses=losses,
            sightings=record.sightings[self.job.name],
        )


def _undisturbed(
    environment: Environment, namespace: Kubectl, ranks: int, script: ModuleType
) -> _Training:
    """Start the same training in a single pod, without pauses and snapshots."""
    shape = Shape(f"undisturbed-{ranks}", pods=1, copies=0, ranks=ranks)
    made = _start(environment, namespace, shape, script)
    (made.folder / CALM).touch()
    return made


def _start(
    environment: Environment,
    namespace: Kubectl,
    shape: Shape,
    script: ModuleType = memory_training,
) -> _Training:
    claim = environment.make_claim(namespace, shape.name)
    folder = environment.volume_path(namespace, claim)
    spec: dict[str, Any] = {"nprocPerNode": shape.ranks}
    if shape.copies:
        spec = {"memoryCheckpoint": {"sizeLimit": "64Mi", "copies": shape.copies}}
    manifest = script_job(
        shape.name,
        Path(str(script.__file__)).read_text(),
        "python -m ddp_trainer.launch -- python /tmp/script.py",
        replicas=shape.pods,
        overrides=list(shape.overrides),
        restart={"maxRestarts": 100, "backoff": {"initialSeconds": 1, "maxSeconds": 2}},
        **spec,
    )
    pod = manifest["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container["resources"] = {"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}}
    container["env"] += [
        {"name": "STEPS", "value": str(STEPS)},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    container["volumeMounts"] = [{"name": "trace", "mountPath": str(memory_training.FOLDER)}]
    pod["volumes"] = [{"name": "trace", "persistentVolumeClaim": {"claimName": claim}}]
    namespace.apply(manifest)
    return _Training(Job(namespace, shape.name), shape, folder)

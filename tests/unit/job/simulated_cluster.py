"""A cluster of one job without I/O: pods that live and die, and an operator that may die too."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import combinations

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Goodput
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Key

from tests.unit.job.builders import NOW, pod, stored

SECONDS = tuple(name for name in Goodput.model_fields if name.endswith("_seconds"))

Write = Callable[[], None]
Order = Callable[[list[Write]], list[Write]]


class SimulatedCluster:
    """What the API server stores about one job, and the writes that an operator makes.

    Every write checks what must hold at every moment, whoever crashes next.
    """

    def __init__(self, job: DDPJob) -> None:
        self.job = job
        self.now = NOW
        self.pods: dict[Key, PodState] = {}
        self.report: Report | None = None
        """What the trainer said last; an operator that starts anew has heard nothing."""
        self.job_deleted = False
        self._identities: dict[Key, Identity] = {}

    def advance(self, seconds: int) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def change(self, key: Key, **state: object) -> None:
        """Change a pod, as the kubelet or a person does."""
        self.pods[key] = replace(self.pods[key], **state)  # type: ignore[arg-type]

    def plan(self) -> Plan:
        """Plan as an operator does that has seen everything; it must be a function of that."""
        pods = list(self.pods.values())
        planned = plan(self.job, pods, self.now, report=self.report)
        assert plan(self.job, pods, self.now, report=self.report) == planned
        assert plan(self.job, pods[::-1], self.now, report=self.report).status == planned.status
        return planned

    def reconcile(self, *, order: Order, writes_until_crash: int | None = None) -> None:
        """Plan and carry out until nothing is left to decide, or until the operator crashes.

        `order` arranges deletions and creations, which an operator makes at the same time.
        """
        for count, write in enumerate(self._writes(order)):
            if count == writes_until_crash:
                self.report = None
                return
            write()

    def nothing_to_do(self) -> bool:
        """Whether an operator that looks again finds everything as it should be; the Service, which
        it does not watch, apart.
        """
        planned = self.plan()
        return not (
            planned.decided
            or planned.create
            or planned.delete
            or planned.fence
            or planned.events
            or stored(self.job, planned).status != self.job.status
        )

    def _writes(self, order: Order) -> Iterator[Write]:
        before = self._never_placed()
        yield from self._writes_of_a_look(order)
        if self._never_placed() - before:  # they will be no more: an event that it looks at
            yield from self._writes_of_a_look(order)

    def _never_placed(self) -> set[Key]:
        return {one.key for one in self.pods.values() if one.deleting and not one.scheduled}

    def _writes_of_a_look(self, order: Order) -> Iterator[Write]:
        for _ in range(4):
            planned = self.plan()
            if not planned.decided:
                break
            assert (planned.create, planned.delete, planned.fence) == ((), (), ())
            yield partial(self._store, planned)
        else:
            raise AssertionError("it decides without end")
        if planned.delete_job:
            yield self._delete_job
            return
        yield from (partial(self._fence, key) for key in planned.fence)
        deletions = [partial(self._delete, key) for key in planned.delete]
        creations = [partial(self._create, identity) for identity in planned.create]
        yield from order([*deletions, *creations])
        if stored(self.job, planned).status != self.job.status:
            yield partial(self._store, planned)

    def _store(self, planned: Plan) -> None:
        before, self.job = self.job.status, stored(self.job, planned)
        after = self.job.status
        assert after == planned.status, "what is stored is what was decided"
        assert after.attempt >= before.attempt
        assert after.restarts + after.disruptions >= before.restarts + before.disruptions
        assert after.disruptions >= before.disruptions
        if (books := after.goodput) is not None:
            age = (books.accounted_until - self.job.created).total_seconds()
            assert age == sum(getattr(books, name) for name in SECONDS)
        if before.finished:
            assert after.conditions == before.conditions
            assert (after.phase, after.message) == (before.phase, before.message)

    def _create(self, identity: Identity) -> None:
        assert not self.job.status.finished
        created = pod(
            self.job, identity.index, attempt=identity.attempt, replacement=identity.replacement
        )
        assert created.key not in self.pods
        # A name stands for one identity, ever; the same one comes again only if nobody had yet
        # recorded that it existed.
        assert self._identities.setdefault(created.key, identity) == identity
        self.pods[created.key] = created
        for one, other in combinations(self.pods.values(), 2):
            assert not (_same_host_name(one, other) and one.serving and other.serving)

    def _delete(self, key: Key) -> None:
        assert self.pods[key].owner_uid == self.job.uid
        assert not self.pods[key].deleting
        self.change(key, deleting=True)

    def _fence(self, key: Key) -> None:
        assert self.pods[key].owner_uid == self.job.uid
        self.change(key, serving=False)

    def _delete_job(self) -> None:
        assert self.job.status.finished
        self.job_deleted = True


def _same_host_name(one: PodState, other: PodState) -> bool:
    """Whether DNS would give both addresses for one name; pods that have ended have none."""
    over = {one.phase, other.phase} & {"Succeeded", "Failed"}
    of_one_rank = (one.identity.attempt, one.identity.index) == (
        other.identity.attempt,
        other.identity.index,
    )
    return of_one_rank and not over and one.owner_uid == other.owner_uid

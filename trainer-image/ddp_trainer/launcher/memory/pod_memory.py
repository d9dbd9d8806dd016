"""Keeps the snapshots of this pod: decides what to copy and what to release, in one thread.

Ranks report each save with a datagram. The pod reports to node rank 0 which steps it holds, and
learns which are complete and which are dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ddp_protocol.copies import copy_plan
from ddp_protocol.world import MemoryReport

from ddp_trainer.launcher.memory.copying import Copying
from ddp_trainer.launcher.memory.group import GenerationMemory
from ddp_trainer.launcher.memory.leading import LeadingMemory
from ddp_trainer.launcher.memory.own_steps import Asked, Pod, incomplete_steps, own_steps
from ddp_trainer.launcher.memory.protocol.leader_client import LeaderClient
from ddp_trainer.launcher.memory.protocol.messages import (
    Decision,
    Inventory,
    KeysAnswer,
    KeysReport,
    RankReport,
    Stored,
)
from ddp_trainer.launcher.memory.protocol.peers import Call
from ddp_trainer.launcher.memory.restoring import Restoring
from ddp_trainer.launcher.memory.retention import Retention
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.launcher.world.leading import hosts_of
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.memory.volume import Key, Volume
from ddp_trainer.process_group.assignment import Assignment

_ASK_SECONDS = 0.2
"""Shortest interval between requests to node rank 0 while this pod waits for it."""
_REQUESTS_PER_SECOND = 200
"""Most requests that node rank 0 receives from all pods that wait."""

_logger = logging.getLogger(__name__)


class PodMemory:
    """The snapshots of one pod, from its start to its end."""

    def __init__(
        self,
        volume: Volume,
        store: Store,
        world: GroupState,
        rank_environment: RankEnvironment,
        *,
        call: Call,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`call`: sends requests to other launchers. `wake`: called when there is work."""
        self.volume = volume
        self.store = store
        self.world = world
        self.group: GenerationMemory | None = None
        """None: no ranks have started yet."""
        self.copying = Copying(store, call, changed=wake)
        self._copies_of: GenerationMemory | None = None
        """The group that `copying` works for."""
        self._rank_environment = rank_environment
        self._call = call
        self._wake = wake
        self._leader = LeaderClient(call)
        self._retention = Retention(generation=0)
        self._news = MemoryReport(copies=volume.copies)

    def news(self) -> MemoryReport | None:
        """Return the news for the operator, if this pod is node rank 0."""
        group = self.group
        if group is None or group.leading is None:
            return None
        return group.leading.news(self._news)

    def inventory(self) -> Inventory:
        """Return all whole snapshots of the pod, and the generation that it knows by now.

        From then on, the pod releases nothing more for an earlier generation.
        """
        with self.store.lock:
            assignment = self.world.assignment
            stored = [
                Stored(name=str(file.name), bytes=file.size, checksum=file.checksum)
                for file in self.store.files()
            ]
        return Inventory(
            generation=assignment.generation,
            node_rank=assignment.node_rank,
            snapshots=tuple(stored),
        )

    def begin(self, assignment: Assignment, ranks_ended: bool = True) -> None:
        """Begin a generation; for the thread that starts its ranks, before it does.

        `ranks_ended`: no rank of this pod runs.
        """
        assert assignment.node_rank is not None, "a pod without a node rank has no ranks"
        ranks, world_size = self._rank_environment.own_ranks(
            assignment.node_rank, nodes=assignment.nodes
        )
        pod = Pod(generation=assignment.generation, ranks=ranks, world_size=world_size)
        leading = self._leading(assignment, world_size) if assignment.node_rank == 0 else None
        restoring = Restoring(
            pod,
            self.store,
            self._call,
            decide=lambda: self._decide(assignment, pod, leading),
            decided=lambda key: self._resume(pod, key),
            is_current=lambda: self._is_current(pod),
            ended=self._wake,
            ask_seconds=_interval(assignment),
        )
        news = self.news()
        with self.store.lock:
            self._news = news or self._news
            self._retention = self._retention.begins(pod.generation)
            self.group = GenerationMemory(
                assignment=assignment,
                pod=pod,
                restoring=restoring,
                leading=leading,
                copies=min(self.volume.copies, assignment.nodes - 1),
                asked=Asked(pod),
            )
        if ranks_ended:
            self.store.reclaim()
        restoring.start()
        self._wake()

    def _leading(self, assignment: Assignment, world_size: int) -> LeadingMemory:
        hosts: list[str] = []
        try:
            hosts = hosts_of(assignment)
        except ValueError as error:
            _logger.warning("memory: no snapshots can be complete: %s", error)
        return LeadingMemory(
            generation=assignment.generation,
            nodes=assignment.nodes,
            hosts=hosts,
            copies=self.volume.copies,
            world_size=world_size,
            call=self._call,
            copy_order=lambda: self.world.copy_order,
        )

    def _decide(
        self, assignment: Assignment, pod: Pod, leading: LeadingMemory | None
    ) -> Decision | None:
        if leading is None:
            return self._leader.decision(assignment, pod)
        if leading.decide(self.inventory(), lambda: self._is_current(pod)):
            self.world.restore_decided()
        return leading.decision(pod.ranks)

    def _is_current(self, pod: Pod) -> bool:
        return self.world.assignment.generation == pod.generation

    def _resume(self, pod: Pod, key: Key | None) -> None:
        """Release what this generation does not resume from."""
        with self.store.lock:
            if not self._is_current(pod):
                return
            self._retention = self._retention.resumes(key)
            self._release()
            for file in self.store.files():
                if (
                    file.name.key == key
                    and file.local_rank is not None
                    and not file.name.replicated
                    and file.name.rank != pod.ranks.start + file.local_rank
                ):
                    self.store.keep_for_others(file)

    def _release(self) -> None:
        retention = self._retention
        self.store.drop(lambda name: not retention.keeps(name.key))

    def turn(self, now: float) -> float | None:
        """Look at the files, copy what is due, and report to node rank 0.

        `now`: monotonic time in seconds.

        Returns:
            When to do it again, if nothing happens before; None: wait for an event.
        """
        group = self.group
        if group is None or not self._is_current(group.pod):
            return None
        files = self.store.files()
        steps = own_steps(files, group.pod)
        pending = group.pending(steps, self._retention)
        if group is not self._copies_of:  # a pod may be another one with the same name now
            self.copying.want(())
            self._copies_of = group
        announced = group.announced(pending)
        self.copying.want(
            [*group.restored_copies(files, self._retention), *group.wanted_copies(announced)]
        )
        useless = incomplete_steps(files, group.pod, asked=group.asked.step(files))
        if given_up := self.copying.given_up:
            group.refusal = next(iter(given_up.values()))
            # Node rank 0 declares them dead. What was restored stays with fewer copies.
            useless |= {key for key in given_up if key.generation == group.pod.generation}
        if useless:  # other steps need the memory
            with self.store.lock:
                if self._is_current(group.pod):
                    self.store.drop(lambda name: name.key in useless)
            return now
        report = group.report(steps, files, self.copying.is_done, self._retention)
        if report == group.reported and not (pending and now >= group.due):
            return group.due if pending else None
        if group.leading is not None:
            answer = self.answer(report)
        else:
            answer = self._leader.report(group.assignment, report)
        group.due = time.monotonic() + _interval(group.assignment)
        if answer is None:
            return group.due
        group.reported = report
        has_more = len(group.announced(pending)) > len(announced)
        return now if self._learn(group, answer) or has_more else group.due

    def _learn(self, group: GenerationMemory, answer: KeysAnswer) -> bool:
        """Act on the answer of node rank 0; return True if it changes what to do."""
        with self.store.lock:
            if self.group is not group or not self._is_current(group.pod):
                return False
            before = self._retention, group.targets, group.sources
            self._retention = self._retention.learns(answer.complete, answer.dead)
            group.targets, group.sources = answer.targets, answer.sources
            if self._retention.complete != before[0].complete:
                group.refusal = ""
            self._release()
            return (self._retention, group.targets, group.sources) != before

    def resumed_from(self, key: Key) -> bool:
        """Return True if this generation resumed from a step, and none is complete since."""
        return self._retention.resumed_from(key)

    def release_moved(self, key: Key) -> bool:
        """Make room for copies of a new step; return True if this may have made some.

        If ranks changed their pods in a restart, or copies their places, this pod has copies that
        others keep by now. They are not released sooner, because those pods may still fetch them.
        Once a new step arrives, the ranks have what they resume from.
        """
        group = self.group
        if group is None or group.reported is None or key.generation != group.pod.generation:
            return False
        node_rank = group.assignment.node_rank or 0
        # A launcher of an earlier release at node rank 0 names no sources.
        in_order = copy_plan(range(group.assignment.nodes), group.copies)
        sources = group.sources or in_order.sources[node_rank]
        kept = {
            rank
            for source in (node_rank, *sources)
            for rank in self._rank_environment.ranks_of(source)
        }
        with self.store.lock:
            self.store.drop(
                lambda name: self.resumed_from(name.key) and name.rank not in kept,
                only_of_other_pods=True,
            )
        return True

    def note(self, report: RankReport) -> None:
        """Take a rank's report; call `turn` afterwards, since files are written before."""
        if self.group is not None:
            self.group.asked.note(report)

    def answer(self, report: KeysReport) -> KeysAnswer | None:
        """Answer another pod's report; None: this pod does not lead that generation.

        Raises:
            ValueError: the report is out of bounds; the message names the field.
        """
        group = self.group
        if group is None or group.leading is None or not self._is_current(group.pod):
            return None
        assignment = group.assignment
        of_group = (assignment.job_uid, assignment.attempt, group.pod.generation)
        if (report.job_uid, report.attempt, report.generation) != of_group:
            return None
        return group.leading.answer(report)


def _interval(assignment: Assignment) -> float:
    return max(_ASK_SECONDS, assignment.nodes / _REQUESTS_PER_SECOND)

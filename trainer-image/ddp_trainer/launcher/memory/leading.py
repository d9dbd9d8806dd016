"""The part of node rank 0 in one generation: which steps are complete, and what ranks resume from.

It asks all pods once which snapshots they have. The decision stands for the generation, so that all
ranks resume from the same step, whenever they ask.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus

from ddp_protocol.copies import CopyPlan, copy_plan, fingerprint, read_order
from ddp_protocol.message import from_json, utc
from ddp_protocol.world import MemoryReport, RestoreDecision

from ddp_trainer.launcher.memory.choice import Choice, choose, listed
from ddp_trainer.launcher.memory.completeness import Completeness
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_ANSWER_BYTES,
    Decision,
    Inventory,
    KeysAnswer,
    KeysReport,
    Source,
    Target,
)
from ddp_trainer.launcher.memory.protocol.peers import Call, NoAnswerError
from ddp_trainer.memory.volume import SnapshotName
from ddp_trainer.process_group.admission import Request

_ANSWER_SECONDS = 30.0
"""How long pods may take to answer. The snapshots of others are not restored."""
_AGAIN_SECONDS = 0.5
_AT_ONCE = 32
_LATE_SECONDS = 60.0
"""How much later than others a pod may save a step: ranks train in step."""
_MOST_SOURCES = 8
"""Pods to name that have the same snapshot, and snapshots of the same state."""

_logger = logging.getLogger(__name__)


class LeadingMemory:
    """The decisions of one generation. Thread-safe."""

    def __init__(
        self,
        *,
        generation: int,
        nodes: int,
        hosts: Sequence[str],
        copies: int,
        world_size: int,
        call: Call,
        copy_order: Callable[[], str] = lambda: "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`hosts`: of the group's pods, by node rank; empty if they are not known.

        `copy_order`: returns the order for `copy_plan`; empty: that of the node ranks.
        """
        self._nodes = nodes
        self._generation = generation
        self._hosts = hosts
        self._copies = copies
        self._world_size = world_size
        self._call = call
        self._sleep = sleep
        self._copy_order = copy_order
        self._copy_plan: tuple[str, CopyPlan] | None = None
        """The present plan, and the order that it is for."""
        self._order_of_complete = ""
        """Fingerprint of the order by which the newest complete step was copied."""
        self.completeness = Completeness(nodes)
        self._lock = threading.Lock()
        self._sizes: Mapping[SnapshotName, int] = {}
        self._checksums: Mapping[SnapshotName, int] = {}
        self.choice: Choice | None = None
        """The snapshots that the ranks resume from; None: not decided yet."""
        self._decided_at = self._completed_at = ""
        self._missing_since: float | None = None
        """Since when some pods wait for others to save."""

    def answer(self, report: KeysReport) -> KeysAnswer:
        """Take the report of a pod.

        Raises:
            ValueError: it is out of bounds; the message names the field.
        """
        report.check()
        if report.node_rank >= self._nodes:
            raise ValueError(f"nodeRank: the group has {self._nodes} pods")
        with self._lock:  # pods copy a step to the places of the answer that first knows of it
            plan = self._current_plan()
            if self.completeness.note(report):
                self._completed_at = utc(time.time())
                self._order_of_complete = self._order_in_use
            dead = self.completeness.dead()
        if self.completeness.missing() is None:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        to = plan.holders[report.node_rank] if self._hosts else ()
        return KeysAnswer(
            complete=self.completeness.complete,
            dead=dead,
            targets=tuple(Target(node_rank=one, host=self._hosts[one]) for one in to),
            sources=tuple(plan.sources[report.node_rank]),
        )

    @property
    def _order_in_use(self) -> str:
        """Return the fingerprint of the present plan's order; empty: that of the node ranks."""
        text = self._copy_plan[0] if self._copy_plan else ""
        return fingerprint(text) if read_order(text, self._nodes) else ""

    def _current_plan(self) -> CopyPlan:
        """Return where copies go; a change makes the steps dead that are being copied."""
        text = self._copy_order()
        if self._copy_plan is None or text != self._copy_plan[0]:
            order = read_order(text, self._nodes) if text else range(self._nodes)
            if order is None:
                _logger.warning("memory: the order for copies does not fit the group: %.80s", text)
                order = range(self._nodes)
            plan = copy_plan(order, self._copies)
            if self._copy_plan is not None and plan != self._copy_plan[1]:
                self.completeness.give_up()
            self._copy_plan = text, plan
        return self._copy_plan[1]

    def decide(self, own: Inventory, is_current: Callable[[], bool]) -> bool:
        """Ask the other pods what they have, and decide; may take half a minute.

        `is_current`: returns False if the group has restarted meanwhile.

        Returns:
            False: nothing was decided, because of that.
        """
        found = {0: own}
        until = time.monotonic() + _ANSWER_SECONDS
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="memory-inventory") as pool:
            while silent := [rank for rank in range(len(self._hosts)) if rank not in found]:
                if not is_current():
                    return False
                if time.monotonic() > until:
                    _logger.warning("memory: %d pods do not tell what they have", len(silent))
                    break
                answers = pool.map(self._ask, silent)
                found |= {rank: one for rank, one in zip(silent, answers, strict=True) if one}
                if len(found) < len(self._hosts):
                    self._sleep(_AGAIN_SECONDS)
        self._settle(found, silent)
        return True

    def _settle(self, found: Mapping[int, Inventory], silent: Collection[int]) -> None:
        stored: dict[int, list[SnapshotName]] = {}
        sizes: dict[SnapshotName, int] = {}
        checksums: dict[SnapshotName, int] = {}
        for node_rank, inventory in found.items():
            for one in inventory.snapshots:
                if name := SnapshotName.parse(one.name):
                    stored.setdefault(node_rank, []).append(name)
                    sizes[name] = one.bytes
                    if one.checksum is not None:
                        checksums[name] = one.checksum
        choice = choose(
            stored, world_size=self._world_size, generation=self._generation, silent=silent
        )
        if len(self._hosts) < self._nodes:
            choice = Choice(reason="node rank 0 does not know the other pods ($DDP_MEMBERS)")
        unusable = [rank for rank, inventory in found.items() if not inventory.usable]
        if unusable:  # its ranks can restore nothing, so the others must not either
            choice = Choice(reason=f"node rank {min(unusable)} cannot use its memory volume")
        with self._lock:
            self._sizes, self._checksums = sizes, checksums
            self.choice, self._decided_at = choice, utc(time.time())

    def _ask(self, node_rank: int) -> Inventory | None:
        """Return a pod's snapshots; None: it does not answer, or is in an earlier generation."""
        request = Request(method="GET", target="/memory")
        try:
            answer = self._call(self._hosts[node_rank], request, MAX_ANSWER_BYTES)
            if answer.status != HTTPStatus.OK:
                return None
            inventory = from_json(Inventory, answer.body)
        except (NoAnswerError, ValueError, RecursionError):
            return None
        is_it = inventory.node_rank == node_rank and inventory.generation >= self._generation
        return inventory if is_it else None

    def decision(self, ranks: range) -> Decision | None:
        """Return what a pod's ranks resume from; None: not decided yet."""
        with self._lock:
            choice = self.choice
        if choice is None:
            return None
        names = sorted(choice.holders, key=lambda name: name.rank)
        if names and names[0].replicated:  # pods begin with different ones
            first = ranks.start % len(names)
            names = [*names[first:], *names[:first]][:_MOST_SOURCES]
        else:
            names = names[ranks.start : ranks.stop]
        sources = [
            Source(
                name=str(name),
                bytes=self._sizes[name],
                hosts=tuple(self._hosts[rank] for rank in choice.holders[name])[:_MOST_SOURCES],
                checksum=self._checksums.get(name),
            )
            for name in names
        ]
        return Decision(sources=tuple(sources), reason=choice.reason)

    def news(self, before: MemoryReport) -> MemoryReport:
        """Return the news for the operator; `before`: the news of the previous generation."""
        # Since then, pods may have been replaced, and their copies are gone.
        news, choice = replace(before, copy_order=None), self.choice
        if choice is not None:
            restored = RestoreDecision(
                generation=self._generation,
                step=choice.key.step if choice.key else None,
                time=self._decided_at,
                reason=choice.reason,
            )
            news = replace(news, restored=restored)
            if restored.step is None:
                news = replace(news, step=None, time=None, bytes=None)
            elif restored.step != before.step:  # another pod was node rank 0 before
                size = self._restored_bytes(choice)
                news = replace(news, step=restored.step, time=self._decided_at, bytes=size)
        with self._lock:
            complete = self.completeness.complete
            if complete is not None:
                news = replace(
                    news,
                    step=complete,
                    time=self._completed_at,
                    bytes=self.completeness.bytes,
                    copy_order=self._order_of_complete,
                    replicated=self.completeness.replicated,
                )
        return replace(news, refusal=self.completeness.refusal or self._late_pods())

    def _late_pods(self) -> str:
        """Return which pods do not save what others saved long ago; empty: none."""
        missing, since = self.completeness.missing(), self._missing_since
        if missing is None or since is None or time.monotonic() - since < _LATE_SECONDS:
            return ""
        step, node_ranks = missing
        return (
            f"step {step} waits for node ranks {listed(node_ranks)}: all ranks must call "
            "memory.save with the same steps"
        )

    def _restored_bytes(self, choice: Choice) -> int:
        """Return the size of what is restored in the pod that has most of it."""
        by_pod: Counter[int] = Counter()
        for name, node_ranks in choice.holders.items():
            by_pod[min(node_ranks)] += self._sizes[name]
        return max(by_pod.values())

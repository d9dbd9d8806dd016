"""What the operator knows of a job's launchers, between its requests to them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ddp_protocol.world import LEAD_SECONDS, LauncherStatus, WorldAnswer

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.trainers.launcher_pods import leader, seconds_to_lead, speakers
from ddp_operator.job.membership.launchers import Assignment, LauncherStates
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.state import PodState

_SILENCE: Final = timedelta(seconds=15)
"""How long all launchers of a job must be silent before the operator suspects its own network. It
is known before a single pod counts as lost."""


@dataclass(slots=True)
class KnownLaunchers:
    """State of a job's launchers and their pods."""

    uid: str
    told: dict[str, tuple[int, bool]] = field(default_factory=dict)
    unreached_since: dict[str, datetime] = field(default_factory=dict)
    status: LauncherStatus | None = None
    """Last status of the launcher of node rank 0, or None before the first one."""
    leader: str = ""
    """Name of the pod of node rank 0; empty while it does not run."""
    address: str = ""
    """Address of its launcher."""
    token_key: str = ""
    """Name of the key from which that pod's token is derived."""
    lead_seconds: int = LEAD_SECONDS
    """After how long without a poll its launcher may decide about failures."""
    silent: int = 0
    """Failed polls in a row."""
    has_answered: bool = False
    """A launcher of the job has ever answered."""
    silent_since: datetime | None = None
    """When the first call failed since a launcher of the job answered."""
    is_silent: bool = False
    """True once none has answered for so long that plans must know."""
    next_witness_at: float = 0.0
    """When another launcher may be asked, by the event loop's clock, because one is silent."""
    spec_hash: str = ""
    """Of the pods that are asked: those of another spec may have no launcher."""
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By pod name: the generation that its launcher refused last, and the led generation that it
    has instead."""
    polling: asyncio.Task[None] | None = None
    under_way: set[tuple[str, int, bool]] = field(default_factory=set)

    def states(self, job: DDPJob) -> LauncherStates:
        """Return what plans of the job read."""
        # The status of another pod does not count: it may have another image, or be of another
        # attempt.
        status = self.status if self.leader in speakers(job) else None
        present = world_of(job).generation
        refused = self.refused.values()
        return LauncherStates(
            told=self.told,
            unreached_since=self.unreached_since,
            silent_since=self.silent_since if self.is_silent else None,
            failures=self.status.failures if self.status else (),
            scope=status.scope if status else "",
            leader=status,
            ahead=max((knows for told, knows in refused if told == present), default=0),
        )

    def update(self, job: DDPJob, pods: Sequence[PodState]) -> None:
        """Follow changes of the job and its pods."""
        self.lead_seconds = seconds_to_lead(job)
        if self.spec_hash != job.spec_hash:
            self.spec_hash, self.has_answered = job.spec_hash, False
        self.has_answered |= bool(job.status.bookkeeping.launcher)  # to an earlier operator
        self._forget_gone(pods)
        self._listen_to(leader(job, pods))

    def heard(self, now: datetime) -> bool:
        """Note that a launcher has answered. Return whether none did for long."""
        self.has_answered, self.silent_since = True, None
        if not self.is_silent:
            return False
        self.is_silent = False
        # The others have had no way to answer, so their time begins now.
        self.unreached_since = dict.fromkeys(self.unreached_since, now)
        return True

    def heard_nothing(self, now: datetime) -> bool:
        """Note that a launcher has not answered. Return whether none does for long, since now."""
        since = self.silent_since = min(self.silent_since or now, now)
        if self.is_silent or now - since < _SILENCE:
            return False
        self.is_silent = True
        return True

    def _listen_to(self, speaker: PodState | None) -> None:
        """Set the pod whose launcher is polled from now on."""
        name, address = (speaker.key.name, speaker.address) if speaker else ("", "")
        if (name, address) == (self.leader, self.address):
            return
        self.stop_polling()
        self.leader, self.address, self.status, self.silent = name, address, None, 0
        if not self.is_silent:
            self.silent_since = None  # its launcher may not listen yet
        if speaker is not None:
            self.token_key = speaker.token_key

    def note(self, assignment: Assignment, answer: WorldAnswer, sent_at: datetime) -> bool:
        """Note the answer to an assignment. Return whether it is news."""
        pod, generation = assignment.pod, assignment.group.generation
        refused = (generation, answer.generation)
        is_news = answer.led and self.refused.get(pod) != refused
        if is_news:
            self.refused[pod] = refused
        if answer.generation < generation or answer.led or not answer.ended:
            # Keep the earlier time, but never a future one: clocks are set back.
            self.unreached_since[pod] = min(self.unreached_since.get(pod, sent_at), sent_at)
            return is_news
        self.unreached_since.pop(pod, None)
        self.refused.pop(pod, None)
        told = (generation, assignment.group.start)
        self.told[pod] = max(told, self.told.get(pod, told))
        return True

    def _forget_gone(self, pods: Sequence[PodState]) -> None:
        """Forget pods that are not among these any more."""
        if not (self.told or self.unreached_since):
            return
        names = {pod.key.name for pod in pods}
        for gone in self.told.keys() - names:
            del self.told[gone]
        for gone in self.unreached_since.keys() - names:
            del self.unreached_since[gone]
            self.refused.pop(gone, None)

    def stop_polling(self) -> None:
        """Stop the poll that is under way."""
        if self.polling is not None:
            self.polling.cancel()
            self.polling = None

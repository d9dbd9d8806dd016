"""Who may act: the rules of leader election by Lease, without clock, network or waiting.

Several replicas of a program watch one `coordination.k8s.io` Lease, and the one that holds it acts.
What makes this safe:

- Clocks are never compared. A holder counts as dead when its lease has not *changed* for as long as
  it had promised, on the clock of the one that looks.
- Every write of the lease is conditional on the version that was read, so of two candidates that
  take it at once one fails.
- A holder counts from the moment it *sent* its last successful renewal, and gives up well before
  others may take over. What lies between is for clocks that run at different speeds, and for
  requests that are under way.
"""

import math
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of the election, in seconds.

    A standby takes over `lease_duration` after it saw the last renewal: with the defaults, 8 to
    11 s after a crash, unless the API server is slow.
    """

    lease_duration: int = 10
    """A holder whose lease has not changed for this long is dead."""
    renew_deadline: float = 7.0
    """A holder that could not renew for this long stops to act."""
    renew_interval: float = 2.0
    """How often a holder renews."""
    retry_interval: float = 1.0
    """How often a standby looks, and how soon a holder tries again after a failure."""
    request_timeout: float = 3.0
    """How long to wait for one answer."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_interval <= self.renew_interval < self.renew_deadline:
            raise ValueError(f"a holder must be able to renew before its deadline: {self}")
        if not self.renew_deadline < self.lease_duration:
            raise ValueError(f"a holder must stop before others may take over: {self}")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as far as the rules need it."""

    holder: str
    """Identity of the holder; empty when nobody holds it."""
    duration: float
    """How long the holder may be silent, in seconds."""
    version: str
    """The object's resourceVersion: changes with every renewal."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the lease."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write our identity into the lease, provided that it still has `version`; None: create it."""

    version: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this time."""

    until: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease was held and is no more: act no more."""

    reason: str


Step = Read | Write | Wait | Lost


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one replica knows, and what it does next: `next_step` asks for I/O, the other methods
    take in what came of it. All times are of one clock of this replica, in seconds.
    """

    identity: str
    timing: Timing
    record: LeaseRecord | None = None
    """The lease as last seen; None when it does not exist, as far as is known."""
    current: bool = False
    """Whether `record` is worth a conditional write."""
    free_at: float = -math.inf
    """When the lease may be taken, as far as is known."""
    due_at: float = -math.inf
    """When the next step is due."""
    held_since: float | None = None
    """When the last successful acquisition or renewal was sent; None for a standby."""
    lost: str = ""
    """Why the lease that was held is lost; there is no way back from that."""

    @property
    def held_until(self) -> float:
        """When a holder must stop to act unless it renews; minus infinity for a standby."""
        if self.held_since is None or self.lost:
            return -math.inf
        return self.held_since + self.timing.renew_deadline

    def may_act(self, now: float) -> bool:
        """Whether no other replica can hold the lease now."""
        return now < self.held_until

    def next_step(self, now: float) -> Step:
        """What to do now."""
        if self.lost:
            return Lost(self.lost)
        if self.held_since is not None and now >= self.held_until:
            return Lost(f"it could not be renewed for {self.timing.renew_deadline:g} s")
        if now < self.due_at:
            held = self.held_since is not None
            return Wait(min(self.due_at, self.held_until) if held else self.due_at)
        if not self.current:
            return Read()
        return Write(self.record.version if self.record else None)

    def read(self, record: LeaseRecord | None, *, at: float) -> Self:
        """Take in the lease, None when there is none; `at` is when the answer came."""
        if self.held_since is not None:
            if record is not None and record.holder != self.identity:
                return replace(self, lost=f"{record.holder or 'nobody'} holds it now")
            return replace(self, record=record, current=True, due_at=at)
        free_at = self.free_at
        if record != self.record:
            # Deleting a lease does not stop its holder: that one is given the time it would have
            # had. A lease that bears our name was taken by a write whose answer was lost.
            last = record or self.record
            held = last is not None and last.holder not in ("", self.identity)
            free_at = at + last.duration if last is not None and held else at
        if free_at <= at:
            return replace(self, record=record, free_at=free_at, current=True, due_at=at)
        due_at = min(at + self.timing.retry_interval, free_at)
        return replace(self, record=record, free_at=free_at, current=False, due_at=due_at)

    def wrote(self, record: LeaseRecord, *, sent_at: float) -> Self:
        """Take in that a write succeeded; `sent_at` is when it was sent, not when it succeeded."""
        return replace(
            self,
            record=record,
            current=True,
            due_at=sent_at + self.timing.renew_interval,
            held_since=sent_at,
        )

    def refused(self, *, at: float) -> Self:
        """Take in that a write found the lease changed."""
        # A holder must know at once whether that was a write of its own, whose answer was lost.
        due_at = at if self.held_since is not None else at + self.timing.retry_interval
        return replace(self, current=False, due_at=due_at)

    def unanswered(self, *, sent_at: float, at: float) -> Self:
        """Take in that a request failed, with or without effect."""
        due_at = max(sent_at + self.timing.retry_interval, at)
        # A holder repeats its write: if the first one did take effect, it will be refused.
        return replace(self, current=self.current and self.held_since is not None, due_at=due_at)

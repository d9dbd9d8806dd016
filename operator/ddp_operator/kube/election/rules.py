"""Rules of leader election by Lease, without clock, network or waiting.

Several replicas of a program watch one `coordination.k8s.io` Lease. The replica that holds it acts.
This is safe for these reasons:

- Clocks are never compared. A holder counts as dead if its lease has not *changed* for the promised
  time, on the clock of the observer.
- Every write of the lease requires the version that was read. If two candidates take it at once,
  one of them fails.
- A holder counts from the moment when it *sent* its last successful renewal, and stops well before
  others may take over. The margin covers clocks of different speeds, and requests under way.
"""

import math
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of the election, in seconds.

    A standby takes over `lease_duration` after it saw the last renewal. With the defaults that is 8
    to 11 s after a crash, unless the API server is slow.
    """

    lease_duration: int = 10
    """A holder is dead if its lease has not changed for this long."""
    renew_deadline: float = 7.0
    """A holder stops acting if it could not renew for this long."""
    renew_interval: float = 2.0
    """How often a holder renews."""
    retry_interval: float = 1.0
    """How often a standby reads, and how soon a holder tries again after a failure."""
    request_timeout: float = 3.0
    """How long to wait for one response."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_interval <= self.renew_interval < self.renew_deadline:
            raise ValueError(f"a holder must be able to renew before its deadline: {self}")
        if not self.renew_deadline < self.lease_duration:
            raise ValueError(f"a holder must stop before others may take over: {self}")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The parts of a Lease that the rules need."""

    holder: str
    """Identity of the holder; empty if there is none."""
    duration: float
    """How long the holder may be silent, in seconds."""
    version: str
    """The object's resourceVersion, which changes with every renewal."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the lease."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write our identity into the lease if it still has `version`; None creates it."""

    version: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before this time."""

    until: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease was held and is lost: stop acting."""

    reason: str


Step = Read | Write | Wait | Lost


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica's knowledge and next step. `next_step` returns the I/O to do; the other methods
    record its result. All times are in seconds on one clock of this replica.
    """

    identity: str
    timing: Timing
    record: LeaseRecord | None = None
    """The lease as last seen, or None if it does not seem to exist."""
    current: bool = False
    """True if `record` is recent enough for a conditional write."""
    free_at: float = -math.inf
    """Earliest time at which the lease may be taken."""
    due_at: float = -math.inf
    """When the next step is due."""
    held_since: float | None = None
    """When the last successful acquisition or renewal was sent; None for a standby."""
    lost: str = ""
    """Why the lease is lost. This is final."""

    @property
    def held_until(self) -> float:
        """When a holder must stop acting unless it renews; minus infinity for a standby."""
        if self.held_since is None or self.lost:
            return -math.inf
        return self.held_since + self.timing.renew_deadline

    def may_act(self, now: float) -> bool:
        """Return whether no other replica can hold the lease now."""
        return now < self.held_until

    def next_step(self, now: float) -> Step:
        """Return the next step."""
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
        """Record the lease as read, or None if there is none; `at` is when the response came."""
        if self.held_since is not None:
            if record is not None and record.holder != self.identity:
                return replace(self, lost=f"{record.holder or 'nobody'} holds it now")
            return replace(self, record=record, current=True, due_at=at)
        free_at = self.free_at
        if record != self.record:
            # Deleting a lease does not stop its holder, so wait as long as for a present lease. A
            # lease with our name was taken by a write with a lost response.
            last = record or self.record
            held = last is not None and last.holder not in ("", self.identity)
            free_at = at + last.duration if last is not None and held else at
        if free_at <= at:
            return replace(self, record=record, free_at=free_at, current=True, due_at=at)
        due_at = min(at + self.timing.retry_interval, free_at)
        return replace(self, record=record, free_at=free_at, current=False, due_at=due_at)

    def wrote(self, record: LeaseRecord, *, sent_at: float) -> Self:
        """Record a successful write; `sent_at` is when it was sent, not when it succeeded."""
        return replace(
            self,
            record=record,
            current=True,
            due_at=sent_at + self.timing.renew_interval,
            held_since=sent_at,
        )

    def refused(self, *, at: float) -> Self:
        """Record that a write was refused because the lease had changed."""
        # A holder must find out at once whether that was its own write with a lost response.
        due_at = at if self.held_since is not None else at + self.timing.retry_interval
        return replace(self, current=False, due_at=due_at)

    def unanswered(self, *, sent_at: float, at: float) -> Self:
        """Record that a request failed, with or without effect."""
        due_at = max(sent_at + self.timing.retry_interval, at)
        # A holder repeats its write. If the first one took effect, the second is refused.
        return replace(self, current=self.current and self.held_since is not None, due_at=due_at)

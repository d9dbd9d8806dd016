"""Books a job's time to its uses, in whole seconds that add up exactly."""

from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.status import DDPJobStatus, Goodput, Phase

USES: Final[dict[Phase, str]] = {
    "Pending": "pending_seconds",
    "Starting": "starting_seconds",
    "Running": "training_seconds",
    "Restarting": "lost_seconds",
    "Suspended": "suspended_seconds",
}
"""Uses of time, as fields of the books, by phase."""


def use_of(phase: Phase, books: Goodput | None) -> str:
    """Return the field of the books that time in this phase belongs to."""
    is_out = books is not None and books.outage is not None
    # A user may have stored a final phase that the conditions contradict.
    use = USES.get(phase, "pending_seconds")
    return "lost_seconds" if is_out and phase == "Running" else use


def with_booked(books: Goodput, name: str, until: datetime) -> Goodput:
    """Return the books with the time until then booked to a use."""
    # Whole seconds, as stored; a clock that was set back books nothing.
    until = max(until.replace(microsecond=0), books.accounted_until)
    seconds = int((until - books.accounted_until).total_seconds())
    return books.updated(accounted_until=until, **{name: getattr(books, name) + seconds})


def with_moved(
    books: Goodput, time: timedelta, *, to: str, source: str = "training_seconds"
) -> Goodput:
    """Return the books with time booked to another use, as far as there is any."""
    seconds = min(max(round(time.total_seconds()), 0), getattr(books, source))
    return books.updated(
        **{source: getattr(books, source) - seconds, to: getattr(books, to) + seconds}
    )


def with_training_since(books: Goodput, name: str, *, since: datetime) -> Goodput:
    """Return the books with the time until then booked. If training began earlier than it was
    noticed, the time since then is open again: it may be lost with the next failure.
    """
    books = with_booked(books, name, since)
    late = books.accounted_until - since.replace(microsecond=0)
    seconds = min(max(int(late.total_seconds()), 0), getattr(books, name))
    until = books.accounted_until - timedelta(seconds=seconds)
    seconds = getattr(books, name) - seconds
    return books.updated(accounted_until=until, unreported=(), **{name: seconds})


def is_restart(status: DDPJobStatus, since: datetime) -> bool:
    """Return whether pods that are ready since then had restarted."""
    restarting = status.condition("Restarting")
    return restarting is not None and restarting.last_transition_time == since

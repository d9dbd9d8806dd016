"""How reliably a job trains, and what its failures cost: pure functions of its status.

Everything here follows from what the status records: the latest ten failures and whole seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.api.values.text import clean
from ddp_operator.job.failure.records import MAX_FAILURES

from ddp_client.report.model import FailureInterval, Recovery, SpareEstimate, Usage

_HELD: Final = ("starting", "training", "lost")
"""The parts of a job's time in which it holds its pods."""
_LEAST_FAILURES: Final = 3
"""Fewer failures have at most one time between them, which is no mean."""


def _seconds_held(spent: Mapping[str, int]) -> tuple[int, int]:
    """Return the seconds in which a job held its pods, and those of them that were lost."""
    return sum(spent.get(kind, 0) for kind in _HELD), spent.get("lost", 0)


def effective_training_ratio(spent: Mapping[str, int]) -> float | None:
    """Return ETTR: seconds of training, divided by the seconds in which the job held its pods.

    Suspension and waiting for nodes or quota do not count. None before the first training.
    """
    held, _ = _seconds_held(spent)
    training = spent.get("training", 0)
    return round(training / held, 2) if training else None


def failure_intervals(failures: Sequence[Failure]) -> Iterator[FailureInterval]:
    """Yield the time between recorded failures, for each class and each node.

    Failures that were ignored did not interrupt the training, and those that continue another one
    have no cause of their own: neither is counted.
    """
    counted = [f for f in failures if f.action != "Ignore" and not f.continued]
    groups: tuple[tuple[str, Callable[[Failure], str]], ...] = (
        ("class", lambda failure: failure.class_),
        ("node", lambda failure: failure.node),
    )
    for group, name_of in groups:
        counts = Counter(name for failure in counted if (name := name_of(failure)))
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            times = sorted(failure.time for failure in counted if name_of(failure) == name)
            between = [(after - before).total_seconds() for before, after in pairwise(times)]
            mean = round(sum(between) / len(between)) if count >= _LEAST_FAILURES else None
            yield FailureInterval(
                group=group, name=clean(name, 253), count=count, mean_seconds=mean
            )


def older_failures(status: DDPJobStatus) -> str:
    """Return a sentence about failures that the status no longer records; empty if none can be."""
    recorded = len(status.failures)
    if recorded < MAX_FAILURES:
        return ""
    more = status.restarts + status.disruptions - recorded
    older = f"at least {more} older" if more > 0 else "older ones, if any,"
    return f"the status records only the latest {recorded} failures: {older} are missing here"


def spare_estimate(recoveries: Sequence[Recovery]) -> SpareEstimate | None:
    """Estimate what a spare pod that is ready at each failure would have saved.

    With a spare, the group does not wait until a new pod is created, has a node and runs its
    trainer. It still forms and completes its first step. None if no such wait is known.
    """
    # Failures at the same time are one incident with one recovery.
    replaced = {r.time: r for r in recoveries if r.action in ("RestartPod", "RestartGang")}
    waits = [(wait, r.seconds) for r in replaced.values() if (wait := _wait(r)) is not None]
    if not waits:
        return None
    rest = [seconds - wait for wait, seconds in waits if seconds is not None]
    return SpareEstimate(
        recoveries=len(waits),
        unknown=len(replaced) - len(waits),
        waited_seconds=round(sum(wait for wait, _ in waits)),
        with_spare_seconds=round(sum(rest)) if len(rest) == len(waits) else None,
    )


def usage(kind: str, count: int, spent: Mapping[str, int], price: float | None) -> Usage:
    """Return the hours of some GPUs or pods, and their cost at a price per hour."""
    used, lost = (count * seconds / 3600 for seconds in _seconds_held(spent))
    return Usage(
        kind=kind,
        count=count,
        used_hours=used,
        lost_hours=lost,
        price=price,
        cost=None if price is None else used * price,
        lost_cost=None if price is None else lost * price,
    )


def _wait(recovery: Recovery) -> float | None:
    """Return the seconds until the new pods ran their trainers; None if unknown."""
    parts = [part for part in recovery.parts[:3] if part is not None]
    return sum(parts) if len(parts) == 3 else None

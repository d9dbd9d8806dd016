"""The recovery of each recorded failure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean
from ddp_operator.job.failure import records

from ddp_client.report.facts import Facts, PodFacts
from ddp_client.report.model import PARTS, Recovery

_CLOCKS = timedelta(seconds=1)
"""Kubernetes' times have whole seconds."""


def recoveries(facts: Facts) -> tuple[Recovery, ...]:
    """Return each recovery, oldest first; times after the next failure belong to that one."""
    failures = sorted(facts.job.status.failures, key=lambda failure: failure.time)
    result = []
    for number, failure in enumerate(failures):
        later = [other.time for other in failures[number + 1 :] if other.time > failure.time]
        result.append(_recovery(facts, failure, until=min(later, default=None)))
    return tuple(result)


def _recovery(facts: Facts, failure: Failure, *, until: datetime | None) -> Recovery:
    pods = _replacements(facts.pods, failure)
    moments: list[datetime | None] = [failure.time]
    moments += [
        _last([pod.created for pod in pods]),
        _last([pod.scheduled for pod in pods]),
        _last([pod.started for pod in pods]),
    ]
    formed = first = None
    for start in facts.history.starts:
        at = datetime.fromtimestamp(start.formed, UTC)
        if at >= failure.time:
            formed, first = at, datetime.fromtimestamp(start.first_step, UTC)
            break
    moments += [formed, first]
    if until is not None:
        moments = [at if at is not None and at <= until else None for at in moments]
    if failure.action in ("FailJob", "Ignore"):
        moments[1:] = [None] * len(PARTS)
    return Recovery(
        time=failure.time,
        attempt=failure.attempt,
        index=failure.index,
        rank=failure.rank,
        pod=clean(failure.pod, 253),
        node=clean(failure.node, 253),
        cause=clean(records.describe(failure)),
        class_=failure.class_,
        action=failure.action,
        charged=failure.charged,
        parts=tuple(map(_between, moments, moments[1:])),
        seconds=_between(moments[0], moments[-1]),
    )


def _replacements(pods: Sequence[PodFacts], failure: Failure) -> list[PodFacts]:
    """Return the pods created because of this failure: one, or the whole gang."""
    new = [
        pod
        for pod in pods
        if pod.created is not None
        and pod.created >= failure.time - _CLOCKS
        and pod.name != failure.pod
    ]
    of_index = [pod for pod in new if pod.state.identity.index == failure.index]
    if not of_index:
        return []
    first = min(of_index, key=_incarnation)
    attempt = first.state.identity.attempt
    if attempt == failure.attempt:
        return [first]
    return [pod for pod in new if pod.state.identity.attempt == attempt]


def _incarnation(pod: PodFacts) -> tuple[int, int]:
    return pod.state.identity.attempt, pod.state.identity.replacement


def _last(times: Sequence[datetime | None]) -> datetime | None:
    """Return the latest of the times; None if any is missing, or without any."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    # Clocks of different machines may differ: no negative durations.
    return max((end - begin).total_seconds(), 0.0) if begin and end else None

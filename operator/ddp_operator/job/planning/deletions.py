"""Groups of pods that one request can delete."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ddp_operator.api.constants import (
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_UID,
    LABEL_REPLACEMENT,
)
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

_MOST: Final = 64
"""Pods in a group. The API server deletes those of a request one after the other, and a request
that has begun cannot be cancelled, so large jobs need several. But each makes the server search all
pods of the namespace."""


class PodGroup(NamedTuple):
    """Pods of a job that differ in their indexes only."""

    pods: Sequence[Key]
    labels: Mapping[str, Sequence[str]]
    """Values of labels that only these pods have: the job's UID is one of them, and a job never
    creates a pod of the same attempt, index and replacement again."""
    grace_seconds: int | None
    """None: each pod's own grace period."""


def groups(uid: str, pods: Iterable[PodState], planned: Plan) -> list[PodGroup]:
    """Return the pods that a plan deletes in groups of at least two, without the rest.

    `uid` is the job's, `pods` are all of its pods.
    """
    doomed = frozenset(planned.delete)
    alike: dict[tuple[int, int, int | None], list[PodState]] = {}
    for pod in pods:
        if pod.key in doomed and pod.owner_uid == uid and pod.identity.attempt >= 0:
            which, grace = pod.identity, planned.grace_seconds.get(pod.key)
            alike.setdefault((which.attempt, which.replacement, grace), []).append(pod)
    return [
        PodGroup(
            tuple(pod.key for pod in part),
            {
                LABEL_JOB_UID: (uid,),
                LABEL_ATTEMPT: (str(attempt),),
                LABEL_REPLACEMENT: (str(replacement),),
                LABEL_INDEX: tuple(str(pod.identity.slot) for pod in part),
            },
            grace,
        )
        for (attempt, replacement, grace), members in alike.items()
        for part in (members[i : i + _MOST] for i in range(0, len(members), _MOST))
        if len(part) > 1
    ]

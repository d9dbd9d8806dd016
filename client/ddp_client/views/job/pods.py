"""A job's pods: the current ones, their states, and what they wait for."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.pods.observed import completed_indexes
from ddp_operator.job.pods.state import PodState

from ddp_client.views.job.snapshot import JobSnapshot

_MARKS: Final = {
    "ready": "R",
    "done": "D",
    "starting": "s",
    "waiting": "w",
    "stuck": "!",
    "ending": "E",
    "failed": "F",
    "missing": ".",
}
"""One letter for each state; no colours."""
_IN_A_ROW: Final = 50
_MOST_ROWS: Final = 8


@dataclass(frozen=True)
class Pods:
    """The pods of a job's current attempt."""

    current: Mapping[int, PodState]
    states: Sequence[str]
    """By index: a key of `_MARKS`."""
    old: int
    """Number of pods from earlier attempts or replaced ones that still exist."""
    names: frozenset[str] = frozenset()
    """Names of all existing pods: their logs can be read."""
    outside: Sequence[PodState] = ()
    """Pods without a node rank, in the order of the numbers in their names."""
    wanted: int = 0
    """How many of those an elastic job's group would admit; the others are spares."""

    @classmethod
    def of(cls, job: JobSnapshot, pods: Iterable[PodState]) -> "Pods":
        """Sort the pods with the job's label; the newest pod of each index counts."""
        current: dict[int, PodState] = {}
        outside: dict[int, PodState] = {}
        own = [pod for pod in pods if pod.owner_uid == job.uid]
        for pod in sorted(own, key=lambda pod: pod.identity.replacement):
            identity = pod.identity
            if identity.attempt != job.status.attempt:
                continue
            if identity.slot in job.node_ranks:
                placed = job.placed(pod)
                current[placed.identity.index] = placed
            elif job.elastic or identity.slot < job.replicas + job.spares:
                outside[identity.slot] = pod
        size = len(job.slots)
        done = completed_indexes(job.status.completed_indexes, below=size)
        states = [
            _state(current[index]) if index in current else ("done" if index in done else "missing")
            for index in range(size)
        ]
        names = frozenset(pod.key.name for pod in own)
        return cls(
            current=current,
            states=states,
            old=len(own) - len(current) - len(outside),
            names=names,
            outside=[outside[slot] for slot in sorted(outside)],
            wanted=max(job.parsed.spec.max_size - size, 0) if job.parsed else 0,
        )

    def of_ranks(self, job: JobSnapshot, chosen: Collection[int]) -> list[PodState]:
        """Return the pods of these ranks in order; without ranks, all pods.

        Raises:
            RefusedError: the job has no such rank, or its spec cannot be read.
        """
        indexes = job.indexes_of(chosen)
        return [self.current[at] for at in sorted(self.current) if not chosen or at in indexes]

    @property
    def first_failed(self) -> PodState | None:
        """The pod that failed first, as far as the nodes' clocks agree."""
        failed = [pod for pod in self.current.values() if pod.failed]
        return min(failed, key=_ended_at, default=None)


def rows(pods: Pods) -> list[str]:
    """Return the pods' letters in the order of ranks, and a legend."""
    marks = "".join(_MARKS[state] for state in pods.states)
    shown = marks[: _IN_A_ROW * _MOST_ROWS]
    lines = [shown[at : at + _IN_A_ROW] for at in range(0, len(shown), _IN_A_ROW)]
    if len(lines) > 1:
        lines = [f"{at * _IN_A_ROW:>4} {line}" for at, line in enumerate(lines)]
    if len(marks) > len(shown):
        lines.append(f"and {len(marks) - len(shown)} more")
    counts = Counter(pods.states)
    legend = [f"{counts[word]} {word} ({mark})" for word, mark in _MARKS.items() if counts[word]]
    old = [f"{counted(pods.old, 'old pod')} still there"] if pods.old else []
    legend_line = ", ".join([*legend, *_outside(pods), *old])
    return [f"{lines[0]}  {legend_line}"] if len(lines) == 1 else [*lines, legend_line]


def _outside(pods: Pods) -> list[str]:
    count = len(pods.outside)
    if not count:
        return []
    counts = Counter(map(_state, pods.outside))
    words = ", ".join(f"{each} {word}" for word, each in counts.items())
    if not pods.wanted:
        what = counted(count, "spare")
    else:
        what = f"{count} to join" if count <= pods.wanted else f"{count} to join or as spares"
    return [f"{what} ({words})"]


def waits(pods: Pods, most: int = 3) -> list[str]:
    """Return why pods wait, in the scheduler's and kubelet's words; the most frequent first."""
    causes: Counter[tuple[str, str]] = Counter()
    names: dict[tuple[str, str], str] = {}
    for pod in (*pods.current.values(), *(pods.outside if pods.wanted else ())):
        if pod.waiting and not (pod.failed or pod.succeeded or pod.deleting):
            kind = (clean(pod.waiting, 64), clean(pod.waiting_message))
            causes[kind] += 1
            names.setdefault(kind, pod.key.name)
    lines = []
    for (reason, message), count in causes.most_common(most):
        who = f"pod {clean(names[reason, message], 253)}"
        who = who if count == 1 else f"{count} pods, such as {clean(names[reason, message], 253)}"
        lines.append(f"{who}: {reason}" + (f": {message}" if message else ""))
    if len(causes) > most:
        lines.append(f"and {len(causes) - most} more causes")
    return lines


def _state(pod: PodState) -> str:
    if pod.succeeded:
        return "done"
    if pod.failed:
        return "failed"
    if pod.deleting:
        return "ending"
    if pod.ready:
        return "ready"
    if not pod.scheduled:
        return "waiting"
    return "stuck" if pod.waiting else "starting"


def _ended_at(pod: PodState) -> tuple[float, int]:
    ended = pod.exit.finished.timestamp() if pod.exit and pod.exit.finished else float("inf")
    return ended, pod.identity.index

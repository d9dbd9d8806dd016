"""How close to each other the pods of a job run, by the labels of their nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.pods.observed import Observed
from ddp_operator.ports import Event, Node

Place = tuple[str | None, ...]
"""Labels from the widest to the closest level."""
_LEVELS: Final = tuple(GKE_TOPOLOGY_LABELS)
_SHOWN: Final = 3
"""How many places a message names; there may be as many as pods."""


def with_placement(status: DDPJobStatus, pods: Observed) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status with the pods' placement, and its event.

    It is set once, when all pods run and all their nodes are known. A restart clears it.
    """
    if not pods.nodes or not status.is_true("Running"):
        return status, ()
    known = pods.nodes.by_name
    names = [pod.node for pod in pods.current.values() if pod.node]
    if not names or not all(name in known for name in names):
        return status, ()
    words, spread = _describe([known[name] for name in names])
    status = status.updated(placement=words)
    return status, (Event("Spread", spread),) if spread else ()


def _describe(nodes: Sequence[Node]) -> tuple[str, str]:
    """Return the levels up to the first that all nodes share, and what they do not share."""
    parts, spread = [], ""
    for level in reversed(_LEVELS):
        places = Counter(place_of(node, level) for node in nodes)
        if any(place[-1] is None for place in places):
            if level != "host":
                continue  # unknown at this level
            places = Counter((node.name,) for node in nodes)
        parts.append(f"{len(places)} {level}{'s' if len(places) > 1 else ''}")
        if len(places) == 1:
            break
        if level != "host":
            spread = f"the pods run in {len(places)} {level}s: {_counted(places)}"
    return ", ".join(parts), spread


def place_of(node: Node, level: str) -> Place:
    """Return the labels from the widest level on, since names may repeat in another place."""
    wider = _LEVELS[: _LEVELS.index(level) + 1]
    return tuple(node.labels.get(GKE_TOPOLOGY_LABELS[each]) for each in wider)


def _counted(places: Mapping[Place, int]) -> str:
    ordered = sorted(places.items(), key=lambda item: (-item[1], str(item[0])))
    shown = ", ".join(f"{count} in {place[-1]}" for place, count in ordered[:_SHOWN])
    more = sum(count for _, count in ordered[_SHOWN:])
    return f"{shown} and {more} elsewhere" if more else shown

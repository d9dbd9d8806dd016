"""Rules for the order of node ranks along the network."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.rank_order import ANSWER_SECONDS
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import PodState

from tests.simulation.world.server import ApiServer

_SLACK: Final = timedelta(seconds=1)
"""Times of containers are in whole seconds."""


def judge_order(
    server: ApiServer,
    old: DDPJob,
    new: DDPJob,
    require: Callable[[object, str], None],
    *,
    now: datetime | None,
) -> None:
    """Judge a decision: ranks are in the order of their nodes, unless no launcher could receive it,
    or ranks run that would have to restart. `now`: None where the clock was wrong.
    """
    before, after = old.status.bookkeeping.ordered, new.status.bookkeeping.ordered
    if before == after or not after:
        return
    pods = [_pod_of(server, new, slot) for slot in members(new)]
    there = [pod for pod in pods if pod is not None and pod.node]
    if len(there) < len(pods):
        return  # some have gone since
    first = before[:1] != after[:1]
    depth = 3 if first or not _re_forms(new) else 2
    if _is_contiguous(server, there, depth):
        return
    announced = _generation(new) > _generation(old)
    starts = [pod.started for pod in there if pod.started]
    late = now is None or (
        len(starts) == len(there)
        and now + _SLACK >= max(starts) + timedelta(seconds=ANSWER_SECONDS)
    )
    excused = (
        late
        or not new.status.bookkeeping.launcher
        or any(pod.succeeded for pod in there)
        or bool(new.status.completed_indexes)
        or new.status.is_true("Running")
    )
    nodes = [pod.node for pod in there]
    require(not announced and excused, f"ranks are given out without need along {nodes}")


def _re_forms(job: DDPJob) -> bool:
    scope = job.spec.restart.scope
    return scope == "Pod" or (scope == "Auto" and job.status.bookkeeping.launcher == "Pod")


def _generation(job: DDPJob) -> int:
    return job.status.world.generation if job.status.world else 0


def _pod_of(server: ApiServer, job: DDPJob, slot: int) -> PodState | None:
    wanted = (job.status.attempt, job.status.bookkeeping.replacements.get(str(slot), 0), slot)
    for manifest in server.pods.values():
        pod = project(manifest)
        identity = pod.identity
        found = (identity.attempt, identity.replacement, identity.slot)
        if pod.owner_uid == job.uid and found == wanted:
            return pod
    return None


def _is_contiguous(server: ApiServer, pods: Sequence[PodState], depth: int) -> bool:
    """Return whether nobody comes back to a place that was left, at any level."""
    labels = [_places(server.nodes[pod.node].labels) for pod in pods]
    for level in range(1, depth + 1):
        runs = [place for place, _ in groupby(place[:level] for place in labels)]
        if len(runs) != len(set(runs)):
            return False
    return True


def _places(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels[label] for label in GKE_TOPOLOGY_LABELS.values())

"""Nodes that are about to be terminated: replace their pods, or ask the trainer to save in time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.failure import records
from ddp_operator.job.failure.nodes import avoiding_signalled, fitting
from ddp_operator.job.membership.world import scope_of
from ddp_operator.job.planning.failures import recovery
from ddp_operator.job.planning.group import elasticity, spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Event, Node

MAX_LEFT: Final = 100
"""How many nodes a job remembers to have left, so that it leaves each only once."""
_MAX_START: Final = 240
SAVE_BEFORE: Final = timedelta(minutes=10)
"""How long before a node's known end its job is asked for a checkpoint."""


def leave(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to replace the pods on nodes that are about to be terminated, as an early disruption,
    if there is another place for them.
    """
    doomed = _doomed(job, pods)
    if not doomed:
        return None
    lost = [pod.identity.index for pod, _ in doomed]
    if not (elasticity.can_go_without(job, pods, lost) or is_place(job, pods, doomed)):
        return None
    left = (*job.status.bookkeeping.left_nodes, *dict.fromkeys(_start(n) for _, n in doomed))
    job = replace(job, status=job.status.noting(left_nodes=left[-MAX_LEFT:]))
    pod, node = doomed[0]
    why = f"node {pod.node} is about to be terminated ({node.leaving})"
    failure = records.of_lost(job, pod, records.NODE_LEAVING, why, "Disruption", now)
    return recovery.failed(job, pods, failure, lost, now, leaving=True)


def with_checkpoint_request(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Add a request for a checkpoint: one for each of its nodes that leaves or ends soon."""
    pod_0 = pods.current.get(0)
    if pod_0 is None or not (pod_0.address and pod_0.ready):
        return planned
    if not pods.nodes.signalled or not is_at_work(job, pods):
        return planned
    named = {pod.node for pod in pods.current.values()}
    why: dict[str, str] = {}
    waits: list[datetime] = []
    for node in filter(None, map(pods.nodes.signalled.get, named)):
        if node.leaving:
            why[_start(node)] = f"node {node.name} is about to be terminated ({node.leaving})"
        elif node.ends_at and now < node.ends_at - SAVE_BEFORE:
            waits.append(node.ends_at - SAVE_BEFORE)
        elif node.ends_at:
            why[f"{_start(node)} ends"] = f"node {node.name} ends at {format_time(node.ends_at)}"
    planned = planned.requeued_at(*waits)
    # Sorted, so that too many keys are cut in the same way each time.
    keys = sorted(why)[:MAX_LEFT]
    new = [key for key in keys if key not in job.status.bookkeeping.asked_nodes]
    if not new:
        return planned
    others = f", and {len(new) - 1} more node{'s' if len(new) > 2 else ''}" if len(new) > 1 else ""
    message = f"requested a checkpoint: {why[new[0]]}{others}"
    return replace(
        planned,
        status=planned.status.noting(asked_nodes=tuple(keys)),
        ask_checkpoint=pod_0.address,
        events=(*planned.events, Event("CheckpointRequested", message)),
    )


def is_at_work(job: DDPJob, pods: Observed) -> bool:
    """Return whether all pods train, as far as is known, and none has completed."""
    waits = any(gap.reason != "Starting" for gap in pods.gaps)
    return job.status.is_true("Running") and not (pods.any_succeeded or waits)


def _doomed(job: DDPJob, pods: Observed) -> list[tuple[PodState, Node]]:
    """Return the pods on nodes that are about to be terminated, with their nodes."""
    leaving = {name: node for name, node in pods.nodes.signalled.items() if node.leaving}
    if not leaving or not is_at_work(job, pods):
        return []
    left = set(job.status.bookkeeping.left_nodes)
    on_them = [(pod, leaving[pod.node]) for pod in pods.current.values() if pod.node in leaving]
    return [(pod, node) for pod, node in on_them if _start(node) not in left]


def is_place(job: DDPJob, pods: Observed, doomed: Sequence[tuple[PodState, Node]]) -> bool:
    """Return whether enough other nodes suit the pods, as far as is known, and the new pods cannot
    return to the old nodes.
    """
    going = {node.name: node for _, node in doomed}
    places = [pod.identity.index for pod, _ in doomed]
    if len(spares.take_over(job, pods, places, leaving=True)) == len(doomed):
        return True
    fits = fitting(job, places)
    near = _bound_to(job, pods, doomed)
    unwanted = {pod.node for pod in pods.current.values()}.union(job.status.excluded_nodes)
    free = (
        node
        for node in pods.nodes
        if not (node.unwell or node.name in unwanted)
        and fits(node)
        and near.items() <= node.labels.items()
    )
    if sum(1 for _ in islice(free, len(going))) < len(going):
        return False
    avoided = set(avoiding_signalled(job, job.status, pods.nodes).excluded_nodes)
    return all(name in avoided or not fits(node) for name, node in going.items())


def _bound_to(
    job: DDPJob, pods: Observed, doomed: Sequence[tuple[PodState, Node]]
) -> Mapping[str, str]:
    """Return the node labels that replacements need, where the job requires one place for all."""
    topology = job.spec.topology
    if not (topology and topology.required and scope_of(job) != "Gang"):
        return {}
    going = {pod.key for pod, _ in doomed}
    others = {pod.node for pod in pods.current.values() if pod.key not in going}
    places = (node.labels.get(topology.label) for node in pods.nodes if node.name in others)
    place = next(filter(None, places), None)
    return {topology.label: place} if place else {}


def _start(node: Node) -> str:
    """Return an identifier of this boot of the machine, else its name."""
    return (node.boot_id or node.name)[:_MAX_START]

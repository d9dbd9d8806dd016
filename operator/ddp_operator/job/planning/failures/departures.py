"""Nodes that are about to be terminated: ask the trainer to save in time."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.ports import Event, Node

MAX_LEFT: Final = 100
"""How many nodes a job remembers to have left, so that it leaves each only once."""
_MAX_START: Final = 240
SAVE_BEFORE: Final = timedelta(minutes=10)
"""How long before a node's known end its job is asked for a checkpoint."""


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
            why[boot_of(node)] = f"node {node.name} is about to be terminated ({node.leaving})"
        elif node.ends_at and now < node.ends_at - SAVE_BEFORE:
            waits.append(node.ends_at - SAVE_BEFORE)
        elif node.ends_at:
            why[f"{boot_of(node)} ends"] = f"node {node.name} ends at {format_time(node.ends_at)}"
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


def boot_of(node: Node) -> str:
    """Return an identifier of this boot of the machine, else its name."""
    return (node.boot_id or node.name)[:_MAX_START]

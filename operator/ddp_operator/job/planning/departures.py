"""Nodes that are about to go: their pods leave before them, where there is somewhere to go.

A pod that is told to end in time saves and leaves in order; one whose node is taken away has as
long as the cloud gives it, and its job waits until somebody notices.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.failure import records
from ddp_operator.job.failure.nodes import avoiding_signalled, fitting
from ddp_operator.job.planning import recovery
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node

MAX_LEFT: Final = 100
"""Nodes on record that a job has left: none is left twice."""


def leave(job: DDPJob, pods: Observed, nodes: Sequence[Node], now: datetime) -> Plan | None:
    """Decide to replace the pods on nodes that are about to go; None where there are none, nowhere
    else is a place for them, or the job has something else to do first.

    It is a disruption like any other, a little early: uncharged, of the pods or of the gang.
    """
    doomed = _doomed(job, pods, nodes)
    if not doomed or not _is_place(job, pods, nodes, doomed):
        return None
    left = (*job.status.bookkeeping.left_nodes, *dict.fromkeys(_start(n) for _, n in doomed))
    job = replace(job, status=job.status.noting(left_nodes=left[-MAX_LEFT:]))
    pod, node = doomed[0]
    failure = records.of_leaving(job, pod, node.leaving, now)
    lost = tuple(pod.identity.index for pod, _ in doomed)
    return recovery.failed(job, pods, failure, lost, now)


def _doomed(job: DDPJob, pods: Observed, nodes: Sequence[Node]) -> list[tuple[PodState, Node]]:
    """The pods of a job at work whose nodes are about to go, by index, and those nodes."""
    if not job.status.is_true("Running") or pods.missing or pods.completed:
        return []
    leaving = {node.name: node for node in nodes if node.leaving}
    if not leaving or any(_is_going(pod) for pod in pods.current.values()):
        return []
    left = set(job.status.bookkeeping.left_nodes)
    on_them = [(pod, leaving[pod.node]) for pod in pods.current.values() if pod.node in leaving]
    found = [(pod, node) for pod, node in on_them if _start(node) not in left]
    return sorted(found, key=lambda each: each[0].identity.index)


def _is_going(pod: PodState) -> bool:
    return pod.failed or pod.succeeded or pod.deleting or pod.disrupted


def _is_place(
    job: DDPJob, pods: Observed, nodes: Sequence[Node], doomed: Sequence[tuple[PodState, Node]]
) -> bool:
    """Whether there are as many other nodes that suit the pods, as far as can be told: what others
    run there is not known. And whether the new pods will not come back to the old ones.
    """
    going = {node.name: node for _, node in doomed}
    fits = fitting(job, [pod.identity.index for pod, _ in doomed])
    avoided = set(avoiding_signalled(job, job.status, nodes).excluded_nodes)
    if any(fits(node) and name not in avoided for name, node in going.items()):
        return False
    taken = {pod.node for pod in pods.current.values()}
    free = (
        node
        for node in nodes
        if not (node.leaving or node.bad or node.name in taken or node.name in avoided)
        and fits(node)
    )
    return sum(1 for _ in free) >= len(going)


def _start(node: Node) -> str:
    """This start of a machine, else its name."""
    return node.boot_id or node.name

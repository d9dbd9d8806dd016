"""Tests of waiting pods that must not run on nodes which may be used again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.places.scheduling import PATIENCE
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.schedulers.kueue import kueue_group
from ddp_operator.job.pods.state import Identity, PodState, QueueMember
from ddp_operator.ports import Node

from tests.good_manifests import template
from tests.unit.job.builders import (
    condition,
    ended,
    later,
    pod,
    ready,
    running_job,
    stored,
)

WELL = tuple(Node(f"node-{number}", {}, boot_id=f"boot-{number}") for number in range(8))
NOWHERE = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
FIRST = 40
"""When the pod is created."""
DUE = FIRST + PATIENCE.total_seconds()


def with_node(name: str, **signal: Any) -> list[Node]:
    return [replace(node, **signal) if node.name == name else node for node in WELL]


def waiting(job: DDPJob, identity: Identity, reason: str = "Unschedulable") -> PodState:
    """Return a new pod that the scheduler reports as unschedulable."""
    manifest: Any = manifests.pod(job, identity)
    manifest["metadata"]["uid"] = "p"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": NOWHERE,
    }
    manifest["status"] = {"phase": "Pending", "conditions": [condition]}
    return project(manifest)


def broken(
    nodes: Sequence[Node] = WELL, *, message: str = ECC, **spec: Any
) -> tuple[DDPJob, list[PodState]]:
    """Return a job of three after pod 2 failed on node-2, and its pods with the waiting one."""
    job, pods = running_job(**{"replicas": 3, "restart": {"scope": "Pod"}, **spec})
    pods = [replace(one, started=later(5), node=f"node-{one.identity.index}") for one in pods]
    job = stored(job, plan(job, pods, later(20), nodes=WELL))
    failed = ended(job, 2, code=1, at=30, message=message, node="node-2")
    job = stored(job, plan(job, [*pods[:2], failed], later(35), nodes=nodes))
    assert job.status.bookkeeping.replacements == {"2": 1}
    job = stored(job, plan(job, pods[:2], later(FIRST), nodes=nodes))
    seen = [*pods[:2], waiting(job, Identity(2, 0, 1))]
    return stored(job, plan(job, seen, later(45), nodes=nodes)), seen


def test_pod_kept_off_a_node_that_is_well_again_is_recreated() -> None:
    """The node reported itself broken while the pod was created."""
    job, pods = broken(with_node("node-5", bad="Xid"), message="")
    assert pods[2].avoids == ("node-5",)
    assert not plan(job, pods, later(60), nodes=with_node("node-5", bad="Xid")).decided
    before = job.status
    planned = plan(job, pods, later(60), nodes=WELL)
    assert planned.decided
    [event] = planned.events
    assert (event.reason, event.warning) == ("Rescheduled", False)
    assert event.message == (
        "recreating digits-0-2-r1 (not charged): no node fits, and node-5 may be used again"
    )
    job = stored(job, planned)
    assert job.status.bookkeeping.replacements == {"2": 2}
    assert (job.status.restarts, job.status.disruptions) == (before.restarts, before.disruptions)
    planned = plan(job, pods, later(61), nodes=WELL)
    assert planned.delete == (pods[2].key,)
    planned = plan(job, pods[:2], later(62), nodes=WELL)
    [new] = planned.create
    assert (new.slot, new.replacement) == (2, 2)
    assert waiting(job, new).avoids == ()


def test_node_with_a_broken_device_is_used_again_if_no_other_fits() -> None:
    job, pods = broken()
    assert pods[2].avoids == ("node-2",)
    planned = plan(job, pods, later(DUE - 1), nodes=WELL)
    assert not planned.decided
    assert planned.requeue_at == later(DUE)
    job = stored(job, plan(job, pods, later(DUE), nodes=WELL))
    assert condition(plan(job, pods, later(DUE), nodes=WELL), "Restarting")[1] == "Rescheduled"
    assert job.status.bookkeeping.barred_nodes == ()
    assert job.status.excluded_nodes == ("node-2",), "others are preferred"
    assert waiting(job, Identity(2, 0, 2)).avoids == ()


@pytest.mark.parametrize(("failures", "minutes"), [(1, 5), (2, 10), (4, 40), (30, 320)])
def test_job_waits_longer_for_each_failure_of_the_node(failures: int, minutes: int) -> None:
    job, pods = broken()
    [record] = job.status.bookkeeping.nodes
    nodes = (record.updated(failures=failures),)
    job = replace(job, status=job.status.noting(nodes=nodes))
    due = FIRST + minutes * 60
    assert not plan(job, pods, later(due - 1), nodes=WELL).decided
    assert plan(job, pods, later(due), nodes=WELL).decided


def test_node_that_failed_least_is_used_first() -> None:
    job, pods = broken()
    [record] = job.status.bookkeeping.nodes
    nodes = (record.updated(failures=2), record.updated(name="node-7", boot_id="boot-7"))
    job = replace(job, status=job.status.noting(nodes=nodes, barred_nodes=("node-2", "node-7")))
    pods[2] = waiting(job, Identity(2, 0, 1))
    job = stored(job, plan(job, pods, later(DUE), nodes=WELL))
    assert job.status.bookkeeping.barred_nodes == ("node-2",)
    assert job.status.excluded_nodes == ("node-2", "node-7")


def test_pauses_between_attempts_count_as_waiting() -> None:
    """Pods that release their nodes after a short time-out never wait long in one attempt."""
    job, pods = broken(schedulingTimeoutSeconds=120)
    job = replace(job, status=job.status.noting(scheduling_retries=2))
    pauses = 2 * 120 + 10 + 20
    assert not plan(job, pods, later(DUE - pauses - 1), nodes=WELL).decided
    planned = plan(job, pods, later(DUE - pauses), nodes=WELL)
    assert [event.reason for event in planned.events] == ["Rescheduled"]


def test_node_is_used_again_without_permission_to_see_nodes() -> None:
    job, pods = broken(())
    assert pods[2].avoids == ("node-2",)
    assert not plan(job, pods, later(DUE - 1)).decided
    assert plan(job, pods, later(DUE)).decided


def test_node_that_reports_itself_broken_is_used_if_no_other_fits() -> None:
    nodes = with_node("node-5", bad="Xid")
    job, pods = broken(nodes, message="")
    job = stored(job, plan(job, pods, later(DUE), nodes=nodes))
    assert job.status.bookkeeping.barred_nodes == ()
    assert not plan(job, pods[:2], later(DUE + 1), nodes=nodes).decided, "and stays so"


def test_pod_is_not_recreated_for_a_node_that_is_gone() -> None:
    job, pods = broken()
    for now in (60, DUE, 100 * DUE):
        assert not plan(job, pods, later(now), nodes=WELL[:2]).decided


@pytest.mark.parametrize("reason", ["SchedulingGated", ""])
def test_pod_that_the_scheduler_has_not_tried_is_kept(reason: str) -> None:
    job, pods = broken()
    pods[2] = waiting(job, Identity(2, 0, 1), reason)
    for nodes in (WELL, with_node("node-2", boot_id="again")):
        assert not plan(job, pods, later(DUE), nodes=nodes).decided


def test_waiting_gang_is_recreated_as_a_whole() -> None:
    job, pods = running_job(replicas=1)
    job = stored(job, plan(job, [replace(pods[0], node="node-0")], later(20), nodes=WELL))
    dead = ended(job, 0, code=1, node="node-0", message=ECC)
    job = stored(job, plan(job, [dead], later(30), nodes=WELL))
    job = stored(job, plan(job, [], later(90), nodes=WELL))
    attempt, restarts = job.status.attempt, job.status.restarts
    stuck = waiting(job, Identity(0, attempt))
    assert stuck.avoids == ("node-0",)
    rebooted = with_node("node-0", boot_id="again")
    job = stored(job, plan(job, [stuck], later(95), nodes=rebooted))
    assert (job.status.attempt, job.status.restarts) == (attempt + 1, restarts)
    assert job.status.excluded_nodes == ()


@pytest.mark.parametrize(("topology", "recreated"), [({"level": "block"}, True), (None, False)])
def test_pods_held_by_a_queue_that_knows_the_nodes_queue_again(
    topology: dict[str, Any] | None, *, recreated: bool
) -> None:
    """Kueue admits no group for which it finds no place. Without topology it waits for quota."""
    scheduling = {"queueName": "research", **({"topology": topology} if topology else {})}
    job, _ = running_job(replicas=1, scheduling=scheduling)
    first = ready(job, 0, node="node-0", queue=QueueMember("g"))
    failed = ended(job, 0, code=1, node="node-0", message=ECC, queue=QueueMember("g"))
    job = stored(job, plan(job, [first], later(20), nodes=WELL))
    job = stored(job, plan(job, [failed], later(30), nodes=WELL))
    job = stored(job, plan(job, [], later(FIRST), nodes=WELL))
    attempt = job.status.attempt
    held = waiting(job, Identity(0, attempt), "SchedulingGated")
    held = replace(held, queue=QueueMember(kueue_group(job)))
    assert held.avoids == ("node-0",)
    job = stored(job, plan(job, [held], later(FIRST), nodes=WELL))
    assert not plan(job, [held], later(DUE - 1), nodes=WELL).decided
    planned = plan(job, [held], later(DUE), nodes=WELL)
    assert planned.decided is recreated
    assert (planned.status.bookkeeping.queue_group or 0) == int(recreated)


def test_rebooted_node_is_used_at_once() -> None:
    job, pods = broken()
    assert not plan(job, pods, later(60), nodes=WELL).decided
    assert plan(job, pods, later(60), nodes=with_node("node-2", boot_id="again")).decided


def test_pod_is_not_recreated_for_a_node_that_does_not_answer() -> None:
    job, pods = broken()
    silent = with_node("node-2", boot_id="again", unready=True)
    assert not plan(job, pods, later(60), nodes=silent).decided


def test_pod_avoiding_a_node_by_template_is_kept() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-2"]}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
    }
    job, pods = broken(message="", template=template(affinity=affinity))
    assert pods[2].avoids == ("node-2",)
    assert not plan(job, pods, later(DUE), nodes=WELL).decided


def test_node_avoided_by_one_of_several_terms_is_not_avoided() -> None:
    job, _ = running_job(replicas=1)
    manifest: Any = manifests.pod(job, Identity(0, 0))
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [name]}]}
        for name in ("node-1", "node-2")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    manifest["spec"]["affinity"] = {"nodeAffinity": required}
    assert project(manifest).avoids == ()
    assert pod(job, 0).avoids == ()

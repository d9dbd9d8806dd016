"""Tests of waiting pods that avoid nodes which may be used again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Node

from tests.good_manifests import template
from tests.unit.job.builders import (
    ended,
    later,
    pod,
    running_job,
    stored,
)

WELL = tuple(Node(f"node-{number}", {}, boot_id=f"boot-{number}") for number in range(8))
NOWHERE = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


def unready(*names: str) -> list[Node]:
    return [replace(node, unready=node.name in names) for node in WELL]


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


def lost(nodes: Sequence[Node], **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job of three after pod 2 was lost, and its pods with the waiting one."""
    job, pods = running_job(**{"replicas": 3, "restart": {"scope": "Pod"}, **spec})
    pods = [replace(one, started=later(5), node=f"node-{one.identity.index}") for one in pods]
    job = stored(job, plan(job, pods, later(20), nodes=WELL))
    job = stored(job, plan(job, pods[:2], later(30), nodes=nodes))
    assert job.status.bookkeeping.replacements == {"2": 1}
    job = stored(job, plan(job, pods[:2], later(45), nodes=nodes))
    return job, [*pods[:2], waiting(job, Identity(2, 0, 1))]


def test_pod_avoiding_a_recovered_node_is_recreated() -> None:
    job, pods = lost(unready("node-0", "node-2"))
    assert job.status.excluded_nodes == ("node-0", "node-2")
    assert pods[2].avoids == ("node-0", "node-2")
    assert not plan(job, pods, later(50), nodes=unready("node-0", "node-2")).decided
    before = job.status
    planned = plan(job, pods, later(60), nodes=unready("node-0"))
    assert planned.decided
    [event] = planned.events
    assert (event.reason, event.warning) == ("Rescheduled", False)
    assert event.message == (
        "recreating digits-0-2-r1 (not charged): no node fits while node-2 is avoided, "
        "which can be used again"
    )
    job = stored(job, planned)
    assert job.status.bookkeeping.replacements == {"2": 2}
    assert (job.status.restarts, job.status.disruptions) == (before.restarts, before.disruptions)
    assert job.status.excluded_nodes == ("node-0",)
    planned = plan(job, pods, later(61), nodes=unready("node-0"))
    assert planned.delete == (pods[2].key,)
    planned = plan(job, pods[:2], later(62), nodes=unready("node-0"))
    [new] = planned.create
    assert (new.slot, new.replacement) == (2, 2)
    assert waiting(job, new).avoids == ("node-0",)


@pytest.mark.parametrize("signal", [{"leaving": "a taint"}, {"bad": "Xid"}, {"unready": True}])
def test_pod_avoiding_an_unhealthy_node_is_kept(
    signal: dict[str, Any],
) -> None:
    """At most a quarter of the nodes is excluded, so other nodes may be excluded now."""
    job, pods = lost(unready("node-2"))
    unwell = [
        replace(node, **signal) if node.name == "node-2" else replace(node, bad="Xid")
        for node in WELL
    ]
    assert not plan(job, pods, later(60), nodes=unwell).decided


def test_waiting_gang_is_recreated_as_a_whole() -> None:
    job, pods = running_job(replicas=1)
    job = stored(job, plan(job, [replace(pods[0], node="node-0")], later(20), nodes=WELL))
    dead = ended(job, 0, code=137, node="node-0")
    job = stored(job, plan(job, [dead], later(30), nodes=unready("node-0")))
    job = stored(job, plan(job, [], later(90), nodes=unready("node-0")))
    attempt, restarts = job.status.attempt, job.status.restarts
    stuck = waiting(job, Identity(0, attempt))
    assert stuck.avoids == ("node-0",)
    job = stored(job, plan(job, [stuck], later(95), nodes=WELL))
    assert (job.status.attempt, job.status.restarts) == (attempt + 1, restarts)
    assert job.status.excluded_nodes == ()


def test_node_excluded_for_failures_is_used_after_a_reboot() -> None:
    job, pods = lost(WELL)
    job = replace(
        job,
        status=job.status.model_copy(update={"excluded_nodes": ("node-2",)}).noting(
            excluded_boot_ids={"node-2": "boot-2"}
        ),
    )
    pods[2] = waiting(job, Identity(2, 0, 1))
    assert not plan(job, pods, later(60), nodes=WELL).decided
    rebooted = [replace(n, boot_id="again") if n.name == "node-2" else n for n in WELL]
    assert plan(job, pods, later(60), nodes=rebooted).decided


def test_pod_avoiding_a_node_by_template_is_kept() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-2"]}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
    }
    job, pods = lost(WELL, template=template(affinity=affinity))
    assert pods[2].avoids == ("node-2",)
    assert not plan(job, pods, later(60), nodes=WELL).decided


def test_pod_is_recreated_only_if_the_scheduler_may_use_the_node() -> None:
    job, pods = lost(unready("node-2"))
    forgotten = replace(job, status=job.status.model_copy(update={"excluded_nodes": ()}))
    assert plan(forgotten, pods, later(60), nodes=WELL).decided
    cordoned = [replace(n, schedulable=n.name != "node-2") for n in WELL]
    for nodes in (cordoned, cordoned[:2], ()):
        assert not plan(job, pods, later(60), nodes=nodes).decided
    for not_tried in ("SchedulingGated", ""):
        pods[2] = waiting(job, Identity(2, 0, 1), not_tried)
        assert not plan(job, pods, later(60), nodes=WELL).decided


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

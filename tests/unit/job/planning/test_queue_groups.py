"""Tests of pods in Kueue's queues: marks that end their groups, and finalizers."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.places.queue import Upkeep, upkeep
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.schedulers.kueue import group_of
from ddp_operator.job.pods.state import PodState, QueueMember
from ddp_operator.ports import Key, Node

from tests.unit.job.builders import (
    edited,
    ended,
    fresh_job,
    later,
    pod,
    stored,
    with_status,
)
from tests.unit.job.planning.test_queues import QUEUE, created, gated, member, trains

NOTHING = Upkeep()


def trained(replicas: int = 3, **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a training job in a queue, and its pods."""
    job = created(replicas=replicas, scheduling=QUEUE, **spec)
    pods = [trains(job, index) for index in range(replicas)]
    return stored(job, plan(job, pods, later(10))), pods


def finished(pods: list[PodState], job: DDPJob) -> DDPJob:
    """Return the job after its first pod failed permanently."""
    lost = [ended(job, 0, code=1, at=20, queue=pods[0].queue), *pods[1:]]
    job = stored(job, plan(job, lost, later(21)))
    assert job.status.finished
    return job


def marked(pods: list[PodState], *names: str) -> list[PodState]:
    """Return the pods; those with these names end their group."""
    return [
        replace(one, queue=one.queue._replace(ends_group=True))
        if one.queue and one.key.name in names
        else one
        for one in pods
    ]


def failed(one: PodState) -> PodState:
    return replace(one, phase="Failed")


def succeeded(one: PodState) -> PodState:
    return replace(one, phase="Succeeded")


def test_group_is_kept_while_its_job_runs() -> None:
    job, pods = trained(restart={"scope": "Gang"})
    assert upkeep(job, pods, later(30)) == NOTHING
    assert upkeep(job, [failed(pods[0]), *pods[1:]], later(30)) == NOTHING
    leaves = [replace(one, deleting=True, ends_by=later(60)) for one in pods]
    assert upkeep(job, leaves, later(30)) == NOTHING
    lost = [ended(job, 0, code=1, at=20, queue=pods[0].queue), *pods[1:]]
    job = stored(job, plan(job, lost, later(21)))
    assert job.status.attempt == 1
    assert upkeep(job, lost, later(22)) == NOTHING


def test_pods_outside_queues_need_no_upkeep() -> None:
    job, pods = trained()
    loose = [replace(one, queue=None, deleting=True, ends_by=later(0)) for one in pods]
    assert upkeep(None, loose, later(999)) == upkeep(job, loose, later(999)) == NOTHING


def test_group_of_a_finished_job_ends_by_one_mark() -> None:
    job, pods = trained(restart={"maxRestarts": 0, "scope": "Gang"})
    job = finished(pods, job)
    there = [failed(pods[0]), *pods[1:]]
    mark = upkeep(job, there, later(30))
    assert mark == Upkeep(end=(pods[1].key,)), "Kueue may have replaced the failed one"
    assert upkeep(job, marked(there, pods[1].key.name), later(31)) == NOTHING
    assert upkeep(job, marked(there, pods[0].key.name), later(31)) == NOTHING
    assert upkeep(job, [failed(one) for one in pods], later(31)).end == (pods[0].key,)


def test_group_of_succeeded_pods_ends_by_itself() -> None:
    job, pods = trained()
    over = [ended(job, index, code=0, queue=pods[index].queue) for index in range(3)]
    job = stored(job, plan(job, over, later(30)))
    assert job.status.finished
    assert upkeep(job, over, later(31)) == NOTHING
    assert upkeep(None, over, later(31)) == NOTHING
    [mark] = upkeep(job, [*over[:2], failed(pods[2])], later(31)).end
    assert mark == over[0].key


@pytest.mark.parametrize("change", [{"suspend": True}, {"nprocPerNode": 2}])
def test_group_of_a_suspended_or_changed_job_ends_once_recorded(change: dict[str, Any]) -> None:
    job, pods = trained()
    job = edited(job, **change)
    assert upkeep(job, pods, later(20)) == NOTHING
    job = stored(job, plan(job, pods, later(20)))
    assert upkeep(job, pods, later(21)).end == (pods[0].key,)


def test_group_of_a_deleted_job_ends() -> None:
    job, pods = trained()
    end = Upkeep(end=(pods[0].key,))
    assert upkeep(replace(job, deleting=True), pods, later(20)) == end
    assert upkeep(replace(job, uid="another"), pods, later(20)) == end
    assert upkeep(None, pods, later(20)) == end


def test_each_group_gets_its_own_mark() -> None:
    job, pods = trained()
    others = [
        replace(one, key=Key("research", f"other-{one.key.name}"), queue=QueueMember("other"))
        for one in pods
    ]
    assert upkeep(job, [*others, *pods], later(20)).end == (others[0].key,)
    assert upkeep(None, [*others, *pods], later(20)).end == (others[0].key, pods[0].key)
    some = marked([*others, *pods], others[2].key.name)
    assert upkeep(None, some, later(20)).end == (pods[0].key,)


def beyond(job: DDPJob, slot: int, **state: Any) -> PodState:
    """Return an elastic job's pod beyond minReplicas."""
    made = pod(job, slot, **{"phase": "Running", "node": "node-a", **state})
    return replace(made, queue=QueueMember(group_of(job, made.identity).name))


def test_unneeded_elastic_pod_ends_its_group() -> None:
    job = fresh_job(replicas=4, scheduling=QUEUE, elastic={"minReplicas": 2})
    job = with_status(stored(job, plan(job, [], later(0))), launcher="Pod")
    pods = [trains(job, 0), trains(job, 1)]
    more = [beyond(job, 2), beyond(job, 3)]
    assert upkeep(job, [*pods, *more], later(5)) == NOTHING, "the pods wait to join"
    smaller = edited(job, replicas=3, elastic={"minReplicas": 2})
    assert upkeep(smaller, [*pods, *more], later(5)).end == (more[1].key,)
    replaced = with_status(job, replacements={"2": 1})
    new = beyond(replaced, 2, replacement=1)
    assert upkeep(replaced, [*pods, *more, new], later(5)).end == (more[0].key,)
    again = with_status(job, attempt=1)
    assert set(upkeep(again, [*pods, *more], later(5)).end) == {one.key for one in more}


def test_group_that_never_had_a_node_needs_no_mark() -> None:
    job = created(scheduling=QUEUE)
    waiting = [gated(job, index) for index in range(2)]
    assert upkeep(None, waiting, later(5)) == NOTHING
    one = [replace(waiting[0], node="node-a"), waiting[1]]
    assert len(upkeep(None, one, later(5)).end) == 1


def test_deleted_unscheduled_pods_are_released() -> None:
    job = created(scheduling=QUEUE)
    held = replace(gated(job, 0), deleting=True, queue=member(job, 0, held=True))
    assert upkeep(None, [held], later(5)) == Upkeep(release=(held.key,))
    assert upkeep(job, [held], later(5)) == NOTHING, "Kueue deletes a Workload without pods"
    another = replace(held, queue=held.queue._replace(group="another")) if held.queue else held
    assert upkeep(job, [another], later(5)).release == (held.key,)
    for other in (
        replace(held, deleting=False),
        replace(held, queue=member(job, 0)),
        replace(held, node="node-a", ends_by=later(60)),
    ):
        assert upkeep(None, [other], later(5)).release == ()


def test_pods_are_force_deleted_long_after_their_grace() -> None:
    job, pods = trained()
    late = replace(pods[0], deleting=True, ends_by=later(50))
    assert upkeep(job, [late, *pods[1:]], later(59)).force == ()
    assert upkeep(job, [late, *pods[1:]], later(60)) == Upkeep(force=(late.key,))
    for over in (failed(late), succeeded(late), replace(late, deleting=False)):
        assert upkeep(job, [over, *pods[1:]], later(999)).force == ()
    assert upkeep(None, [late], later(999)).force == (), "the garbage collector also waits for it"


def no_place(pods: list[PodState], job: DDPJob) -> DDPJob:
    """Return the job after a pod that it needs again gave its place back by exit code 0."""
    job = with_status(job, replacements={"1": 1})
    return stored(job, plan(job, [pods[0], succeeded(pods[1]), pods[2]], later(60)))


def on_avoided_node(pods: list[PodState], job: DDPJob) -> DDPJob:
    """Return the job after Kueue kept a pod on a node that it avoids."""
    label = {"kubernetes.io/hostname": "host-b"}
    waits = pod(job, 1, queue=pods[1].queue, avoids=("node-b",), host="host-b")
    planned = plan(job, [pods[0], waits, pods[2]], later(60), nodes=[Node("node-b", label)])
    return stored(job, planned)


def edited_in_place(pods: list[PodState], job: DDPJob) -> DDPJob:
    """Return the job after a person changed its pods."""
    job = replace(edited(job, nprocPerNode=2), prebuilt_workload=job.prebuilt_workload)
    return stored(job, plan(job, pods, later(60)))


@pytest.mark.parametrize("happens", [no_place, on_avoided_node, edited_in_place])
def test_copy_that_needs_another_group_leaves_the_cluster(happens: Any) -> None:
    job, pods = trained()
    copied = replace(job, prebuilt_workload="digits-of-another-cluster")
    pods = [replace(one, queue=QueueMember(copied.prebuilt_workload)) for one in pods]
    copied = happens(pods, copied)
    assert (copied.status.phase, copied.status.bookkeeping.queue_group) == ("Restarting", 1)
    deleted = plan(copied, pods, later(61))
    assert (len(deleted.delete), deleted.create) == (3, ())
    [mark] = upkeep(copied, pods, later(61)).end
    assert mark == pods[0].key, "the copied Workload is finished when all have ended"
    planned = plan(copied, [], later(200))
    assert (planned.decided, planned.create, planned.create_spares) == (False, (), ())
    assert planned.status.reason == "PlaceInQueueLost"
    assert "MultiKueue queues the job again" in planned.status.message
    again = plan(replace(copied, prebuilt_workload=""), [], later(200))
    assert len(again.create) == 3, "outside MultiKueue it queues again in this cluster"


def test_pod_bound_to_an_excluded_node_queues_again() -> None:
    job, pods = trained()
    label = {"kubernetes.io/hostname": "host-b"}
    nodes = [Node("node-a", {}), Node("node-b", label)]
    waits = pod(job, 1, queue=pods[1].queue, avoids=("node-b",), host="host-b")
    pods = [pods[0], waits, pods[2]]
    planned = plan(job, pods, later(20), nodes=nodes)
    assert (planned.status.attempt, planned.status.restarts) == (1, 0)
    assert planned.status.bookkeeping.queue_group == 1
    [event] = planned.events
    assert event.message.endswith("digits-0-1 may run only on host-b, which the job avoids")
    elsewhere = replace(waits, host="host-a")
    assert not plan(job, [pods[0], elsewhere, pods[2]], later(20), nodes=nodes).decided
    # Kueue replaces an unready node itself.
    silent = [nodes[0], replace(nodes[1], unready=True)]
    assert not plan(job, pods, later(20), nodes=silent).decided

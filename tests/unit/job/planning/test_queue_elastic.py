"""Elastic jobs in a queue: the group has minReplicas pods, and each other pod queues by itself."""

from dataclasses import replace

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status.world import World
from ddp_operator.job.membership.launchers import NO_LAUNCHERS
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.schedulers.kueue import group_of
from ddp_operator.job.pods.state import Identity, PodState, QueueMember

from tests.unit.job.builders import NOW, fresh_job, later, stored, with_status
from tests.unit.job.planning.test_queue_groups import beyond, marked
from tests.unit.job.planning.test_queue_places import group, slots
from tests.unit.job.planning.test_queues import QUEUE, created, trains
from tests.unit.job.status.test_goodput import look

INDEX = "kueue.x-k8s.io/pod-group-pod-index-label"
LISTENING = replace(NO_LAUNCHERS, scope="Pod")


def begun() -> DDPJob:
    """Return the job after its group is stored."""
    elastic = {"minReplicas": 2, "maxReplicas": 8, "shrinkAfterSeconds": 0}
    job = fresh_job(replicas=4, scheduling=QUEUE, elastic=elastic)
    return stored(job, plan(job, [], NOW))


def grown() -> tuple[DDPJob, list[PodState]]:
    """Return the job that trains with four pods, and these."""
    job = look(begun(), [], 0)
    job = with_status(job, launcher="Pod", world=World(generation=2, members="0-3"))
    pods = [trains(job, 0), trains(job, 1), beyond(job, 2, ready=True), beyond(job, 3, ready=True)]
    pods = [replace(one, started=NOW) for one in pods]
    return look(job, pods, 10), pods


def evicted(pod: PodState, at: float) -> PodState:
    """Return the pod after Kueue evicted its Workload."""
    reason = "WorkloadEvictedDueToPreempted"
    return replace(pod, deleting=True, disruption=reason, disrupted_at=later(at))


def plan_with(job: DDPJob, pods: list[PodState], at: float) -> Plan:
    return plan(job, pods, later(at), launchers=LISTENING)


def test_elastic_job_queues_with_min_replicas() -> None:
    job = begun()
    assert world_of(job).members == "0-1"
    assert slots(plan(job, [], NOW).create) == [0, 1]
    assert {group(job, Identity(index, 0))[1] for index in range(2)} == {"2"}


def test_further_elastic_pods_queue_one_by_one() -> None:
    job = look(begun(), [], 0)
    pods = [replace(trains(job, index), address="a:1", started=NOW) for index in range(2)]
    job = with_status(look(job, pods, 10), launcher="Pod")
    planned = plan_with(job, pods, 20)
    assert slots(planned.create_spares) == [2, 3, 4, 5, 6, 7]
    groups = [group(job, one) for one in planned.create_spares]
    assert len(set(groups)) == 6
    assert {count for _, count in groups} == {"1"}
    annotations = manifests.pod(job, planned.create_spares[0])["metadata"]["annotations"]
    assert INDEX not in annotations


def test_further_elastic_pods_ask_for_quota_in_a_later_second() -> None:
    """Of what it admitted in the same second, Kueue may preempt any first."""
    job = look(begun(), [], 0)
    pods = [
        replace(trains(job, index), address="a:1", started=NOW, placed=later(8 + index))
        for index in range(2)
    ]
    job = with_status(look(job, pods, 9), launcher="Pod")
    planned = plan_with(job, pods, 9.9)
    assert (planned.create_spares, planned.requeue_at) == ((), later(10))
    assert slots(plan_with(job, pods, 10).create_spares) == [2, 3, 4, 5, 6, 7]


def test_further_elastic_pods_queue_again_in_the_next_attempt() -> None:
    job = begun()
    first, again = (Identity(5, attempt) for attempt in (0, 1))
    assert group(job, first) != group(with_status(job, attempt=1), again)
    assert group(job, Identity(5, 0, 1)) != group(job, first)
    assert group(job) == group(with_status(job, attempt=1), Identity(0, 1))


def test_evicted_further_pods_leave_a_smaller_group_and_queue_again() -> None:
    job, pods = grown()
    left = [*pods[:2], *(evicted(one, 20) for one in pods[2:])]
    planned = plan_with(job, left, 21)
    assert (planned.status.attempt, planned.status.restarts) == (0, 0)
    job = stored(job, planned)
    assert world_of(job).members == "0-1"
    again = plan_with(job, left, 22).create_spares
    assert [one.pod_name(job.name) for one in again[:2]] == ["digits-0-2-r1", "digits-0-3-r1"]


def test_all_restart_if_the_group_is_evicted_after_further_pods() -> None:
    """Kueue may leave one of them, which must not keep its quota and wait for the group."""
    job, pods = grown()
    left = [evicted(pods[0], 21), evicted(pods[1], 21), evicted(pods[2], 20), pods[3]]
    planned = plan_with(job, left, 22)
    [failure] = planned.status.failures
    assert (failure.pod, failure.action, failure.charged) == ("digits-0-2", "RestartGang", False)
    assert (planned.status.attempt, world_of(stored(job, planned)).members) == (1, "0-1")


def test_lost_place_of_a_further_elastic_pod_restarts_nothing() -> None:
    job = created(replicas=3, scheduling=QUEUE, elastic={"minReplicas": 2})
    job = look(job, [], 0)
    pods = [replace(trains(job, index), started=NOW) for index in range(2)]
    job = with_status(look(job, pods, 10), launcher="Pod", replacements={"2": 1})
    queue = QueueMember(group_of(job, Identity(2, 0)).name, ends_group=True)
    old = replace(trains(job, 2), identity=Identity(2, 0), queue=queue, phase="Succeeded")
    planned = plan(job, [*pods, old], later(20))
    assert not planned.decided
    assert slots(planned.create_spares) == [2]
    ends = marked(pods, "digits-0-0")
    assert not plan(job, ends, later(20)).decided, "no pod of that group is missing"


def test_evicted_pods_that_wait_to_join_queue_again_without_a_pause() -> None:
    """Others preempt them again and again. Each queues, so it costs nothing to create them."""
    job, pods = grown()
    job = with_status(job, world=World(generation=2, members="0-1"), spares=(2, 3))
    planned = plan_with(job, [*pods[:2], *(evicted(one, 20) for one in pods[2:])], 21)
    assert planned.decided
    notes = planned.status.bookkeeping
    assert (notes.replacements, notes.spares) == ({"2": 1, "3": 1}, ())
    assert (notes.spares_renewed, notes.no_spare_before) == (None, None)
    lost = replace(pods[3], deleting=True)
    notes = plan_with(job, [*pods[:2], evicted(pods[2], 20), lost], 21).status.bookkeeping
    assert (notes.spares_renewed, notes.no_spare_before) == (1, later(31))

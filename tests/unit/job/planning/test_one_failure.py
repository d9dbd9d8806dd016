"""Tests of charges: one failure is charged once, even if several reports show it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.membership.world import members, world_of
from ddp_operator.job.planning.gaps import UNREACHABLE_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node
from ddp_protocol.world import PodFailure

from tests.unit.job.builders import (
    ended,
    later,
    listening,
    node_failures,
    pod,
    ready,
    running_job,
    stored,
)

LOST_PEER = "RuntimeError: Connection closed by peer"
SCOPES = ("InPlace", "Pod")


def running(scope: str, **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a training job of three pods with launchers that answer."""
    restart = {"scope": scope, **spec.pop("restart", {})}
    job, pods = running_job(replicas=3, restart=restart, **spec)
    pods = [listening(each) for each in pods]
    return look(job, pods, 20), pods


def look(
    job: DDPJob,
    pods: Sequence[PodState],
    at: float,
    *failures: PodFailure,
    nodes: Sequence[Node] = (),
    **launchers: Any,
) -> DDPJob:
    """Return the job as stored after all decisions of one moment."""
    states = LauncherStates(scope="InPlace", failures=failures, **launchers)
    while (planned := plan(job, pods, later(at), launchers=states, nodes=nodes)).decided:
        job = stored(job, planned)
    return stored(job, planned)


def reported(of: PodState, *, generation: int = 0, code: int = 1, at: float = 59) -> PodFailure:
    message = "boom" if code == 1 else LOST_PEER
    return PodFailure(
        pod=of.key.name,
        generation=generation,
        exit_code=code,
        message=message,
        time=later(at).isoformat(),
    )


def counts(job: DDPJob) -> tuple[int, int]:
    """Return the charged restarts by both counters."""
    assert job.status.restarts == sum(failure.charged for failure in job.status.failures)
    return job.status.restarts, job.status.bookkeeping.restarts_without_progress


def new(job: DDPJob, index: int, **state: Any) -> PodState:
    """Return the pod that is created for a slot now."""
    number = job.status.bookkeeping.replacements.get(str(index), 0)
    return pod(job, index, replacement=number, generation=world_of(job).generation, **state)


def like(each: PodState, **how: Any) -> PodState:
    """Return the pod after its trainer ended."""
    over = ended_of(**how)
    return replace(each, phase="Failed", ready=False, started=None, exit=over.exit)


def ended_of(**how: Any) -> PodState:
    return ended(running_job()[0], 0, **{"code": 1, **how})


def test_launcher_report_and_pod_exit_are_one_failure() -> None:
    job, pods = running("InPlace")
    job = look(job, pods, 60, reported(pods[1]))
    assert counts(job) == (1, 1)
    job = look(job, [pods[0], like(pods[1], at=60), pods[2]], 61)
    assert counts(job) == (1, 1)
    assert job.status.bookkeeping.replacements == {"1": 1}, "the ended pod is replaced"
    [first, second] = job.status.failures
    assert (first.continued, second.continued) == (None, True)


def test_pods_that_exit_one_by_one_are_one_failure() -> None:
    job, pods = running("InPlace")
    job = look(job, pods, 58, reported(pods[1], at=0))
    for at, late in ((60, [1]), (61, [0, 1]), (62, [0, 1, 2])):
        over = [like(each, at=60) if each.identity.index in late else each for each in pods]
        job = look(job, [*over], at)
    assert counts(job) == (1, 1)


@pytest.mark.parametrize(
    "how",
    [
        {"disruption": "DeletionByTaintManager", "deleting": True},
        {"reason": "NodeLost", "phase": "Failed"},
        {"deleting": True},
        None,
    ],
    ids=["tainted", "lost", "deleted", "vanished"],
)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["launcher", "pod"])
def test_secondary_failure_before_its_disruption_is_refunded(
    scope: str, by: str, how: dict[str, Any] | None
) -> None:
    job, pods = running(scope)
    if by == "launcher":
        job = look(job, pods, 70, reported(pods[0], code=75))
    else:
        pods[0] = like(pods[0], code=75, at=59)
        job = look(job, pods, 70)
    assert counts(job) == (1, 1)
    pods[0] = new(job, 0)
    lost = [replace(pods[1], disrupted_at=later(80), **how)] if how else []
    job = look(job, [pods[0], *lost, pods[2]], 90)
    assert counts(job) == (0, 0)
    assert job.status.failures[-1].class_ == "Disruption"
    assert job.status.disruptions == len(job.status.failures)


def test_secondary_failure_of_an_unreachable_launcher_is_refunded() -> None:
    job, pods = running("InPlace")
    job = look(job, pods, 70, reported(pods[0], code=75))
    unreachable = {pods[1].key.name: later(71)}
    confirmed = {each.key.name: (1, False) for each in (pods[0], pods[2])}
    at = 71 + UNREACHABLE_SECONDS
    job = look(job, pods, at, told=confirmed, unreached_since=unreachable)
    assert counts(job) == (0, 0)
    assert job.status.failures[-1].reason == "LauncherUnreachable"
    assert job.status.bookkeeping.node_failures_without_progress == 1


def test_late_application_cause_leaves_one_charge() -> None:
    for scope in SCOPES:
        job, pods = running(scope)
        job = look(job, [like(pods[0], code=75, at=59), *pods[1:]], 70)
        job = look(job, [new(job, 0), like(pods[1], code=1, at=71), pods[2]], 72)
        assert counts(job) == (1, 1), scope


def test_process_failure_after_an_eviction_is_refunded() -> None:
    job, pods = running("InPlace")
    job = look(job, pods, 60, reported(pods[1], at=59))
    evicted = replace(pods[1], disruption="EvictionByEvictionAPI", deleting=True)
    gone = look(job, [pods[0], replace(evicted, disrupted_at=later(58)), pods[2]], 61)
    assert counts(gone) == (0, 0)
    late = look(job, [pods[0], replace(evicted, disrupted_at=later(65)), pods[2]], 66)
    assert counts(late) == (1, 1), "an eviction after the failure is not its cause"


@pytest.mark.parametrize("scope", SCOPES)
def test_pods_that_fail_before_training_again_are_one_failure(scope: str) -> None:
    job, pods = running(scope)
    job = look(job, [pods[0], like(pods[1], at=59), pods[2]], 60)
    job = look(job, [like(pods[0], at=61), new(job, 1), pods[2]], 62)
    job = look(job, [new(job, 0), new(job, 1), like(pods[2], code=75, at=65)], 70)
    assert counts(job) == (1, 1)
    assert job.status.next_start_time is None, "there is no backoff"


@pytest.mark.parametrize("scope", SCOPES)
def test_failure_of_a_new_pod_is_charged(scope: str) -> None:
    job, pods = running(scope)
    job = look(job, [pods[0], like(pods[1], at=59), pods[2]], 60)
    job = look(job, [pods[0], like(new(job, 1), at=70), pods[2]], 71)
    assert counts(job) == (2, 2)
    job = look(job, [like(pods[0], code=75, at=72), new(job, 1), pods[2]], 76)
    assert counts(job) == (2, 2), "secondary failures are not charged"


def test_failure_of_restarted_processes_is_charged() -> None:
    job, pods = running("InPlace")
    job = look(job, pods, 60, reported(pods[1]))
    confirmed = {each.key.name: (1, True) for each in pods[:2]}
    again = look(job, pods, 63, reported(pods[1], generation=1, at=62), told=confirmed)
    assert counts(again) == (2, 2)
    over = look(job, [pods[0], like(pods[1], at=62), pods[2]], 63, told=confirmed)
    assert counts(over) == (2, 2)
    # A pod that still waits for the others is part of the first failure.
    waits = look(job, [*pods[:2], like(pods[2], at=62)], 63, told=confirmed)
    assert counts(waits) == (1, 1)


@pytest.mark.parametrize("scope", SCOPES)
def test_failure_after_training_again_is_charged(scope: str) -> None:
    job, pods = running(scope)
    job = look(job, [pods[0], like(pods[1], at=59), pods[2]], 60)
    generation = world_of(job).generation
    pods[1] = listening(new(job, 1, phase="Running", ready=True, node="node-a"))
    confirmed = {each.key.name: (generation, True) for each in pods}
    job = look(job, pods, 80, told=confirmed)
    assert job.status.phase == "Running"
    job = look(job, [like(pods[0], at=99), *pods[1:]], 100, told=confirmed)
    assert counts(job) == (2, 2)


def test_failure_after_growing_is_charged() -> None:
    job, pods = running("InPlace", elastic={"minReplicas": 2, "maxReplicas": 4})
    spare = replace(listening(ready(job, 3)), identity=replace(pods[0].identity, index=3))
    confirmed = {each.key.name: (1, True) for each in (*pods, spare)}
    job = look(job, [*pods, spare], 400, told=confirmed)
    job = look(job, [*pods, spare], 401, told=confirmed)
    assert len(members(job)) == 4
    job = look(job, [pods[0], like(pods[1], at=401), pods[2], spare], 402)
    assert counts(job) == (1, 1)


def test_failure_after_shrinking_is_part_of_the_loss() -> None:
    job, pods = running("InPlace", elastic={"minReplicas": 2, "shrinkAfterSeconds": 0})
    generation = world_of(job).generation
    confirmed = {each.key.name: (generation, True) for each in pods}
    job = look(job, pods, 30, told=confirmed)
    job = look(job, [pods[0], pods[1], like(pods[2], at=59)], 60, told=confirmed)
    assert (counts(job), len(members(job))) == ((1, 1), 2)
    job = look(job, [pods[0], like(pods[1], code=75, at=60)], 64, told=confirmed)
    assert counts(job) == (1, 1)


def test_failure_of_a_used_spare_is_charged() -> None:
    job, pods = running("Pod", spares=1)
    spare = listening(ready(job, 3))
    job = look(job, [*pods, spare], 30)
    job = look(job, [pods[0], like(pods[1], at=59), pods[2], spare], 60)
    assert counts(job) == (1, 1)
    job = look(job, [pods[0], pods[2], like(spare, at=61)], 62)
    assert counts(job) == (2, 2)


def test_rule_charges_no_failure_twice() -> None:
    rules = [{"exitCodes": [1, 75], "action": "RestartPod", "charged": True}]
    job, pods = running("InPlace", restart={"rules": rules})
    job = look(job, [pods[0], like(pods[1], at=59), pods[2]], 60)
    job = look(job, [like(pods[0], code=75, at=61), new(job, 1), pods[2]], 65)
    assert counts(job) == (1, 1)


def test_failure_after_a_disruption_is_not_charged() -> None:
    job, pods = running("InPlace")
    job = look(job, [pods[0], replace(pods[1], deleting=True), pods[2]], 60)
    job = look(job, [like(pods[0], at=61), new(job, 1), pods[2]], 62)
    assert counts(job) == (0, 0)


def test_failure_is_counted_once_for_its_node() -> None:
    job, pods = running("InPlace", restart={"nodeFailureLimit": 2})
    nodes = [Node(name, {}) for name in ("node-a", "node-b", "node-c", "node-d")]
    pods[1] = replace(pods[1], node="node-b")
    broken = "CUDA error: unspecified launch failure, NVRM: Xid 79"
    said = replace(reported(pods[1]), message=broken)
    job = look(job, pods, 60, said, nodes=nodes)
    ended = like(pods[1], at=60, message=broken)
    job = look(job, [pods[0], ended, pods[2]], 61, nodes=nodes)
    assert node_failures(job.status) == {"node-b": 1}

"""Tests of jobs with a rank 0 that saves to its own pod's disk."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_protocol.world import LauncherStatus

from tests.good_manifests import container, template
from tests.unit.job.builders import ended, event_reasons, fresh_job, group, later, stored
from tests.unit.job.planning.group.test_elasticity import elastic_job, member_pod, settled
from tests.unit.job.planning.group.test_in_place import (
    LISTENS,
    failure,
    in_place,
    knowing,
    launchers,
)


def saying(scope: Any = "InPlace", **more: Any) -> LauncherStates:
    status = LauncherStatus(number=2, generation=0, scope=scope, saved_in_pod=True, **more)
    return replace(LISTENS, scope=scope, leader=status)


def saved(job: DDPJob, pods: list[PodState], of: LauncherStates) -> DDPJob:
    return stored(job, plan(job, pods, later(50), launchers=of))


@pytest.mark.parametrize("scope", ["InPlace", "Pod"])
def test_first_checkpoint_in_a_pod_warns_once(scope: str) -> None:
    # In scope Pod, the script may still be unable to rebuild its group.
    job, pods = in_place(restart={"scope": scope})
    planned = plan(job, pods, later(50), launchers=saying())
    assert event_reasons(planned) == ["CheckpointInPod"]
    assert planned.events[0].warning
    assert planned.status.bookkeeping.saved_in_pod == 0
    job = stored(job, planned)
    assert not plan(job, pods, later(51), launchers=saying()).decided
    # There is one warning per job.
    status = job.status.model_copy(update={"attempt": 1})
    again = plan(replace(job, status=status), [], later(60), launchers=saying())
    assert (event_reasons(again), again.status.bookkeeping.saved_in_pod) == ([], 1)


def test_lost_pod_restarts_all_if_rank_0_saved_in_its_pod() -> None:
    job, pods = in_place(spares=1)
    job = saved(job, pods, saying())
    lost = ended(job, 1, code=137, at=59)
    spare = member_pod(job, 3)
    planned = plan(job, [pods[0], lost, pods[2], spare], later(63), launchers=saying())
    [failed] = planned.status.failures
    assert (failed.action, planned.status.attempt) == ("RestartGang", 1)
    assert "rank 0 saved in its pod" in planned.events[0].message


def test_failed_rank_restarts_all_if_rank_0_saved_in_its_pod() -> None:
    job, pods = in_place()
    job = saved(job, pods, saying())
    planned = plan(job, pods, later(60), launchers=launchers(failure(pods[1])))
    assert planned.status.failures[0].action == "RestartGang"
    assert (planned.status.attempt, planned.status.restarts) == (1, 1)


def test_next_attempt_restarts_in_place_until_it_saves() -> None:
    job, pods = in_place()
    status = job.status.noting(saved_in_pod=0).model_copy(update={"attempt": 1})
    old = replace(job, status=status)
    pods = [replace(pod, identity=replace(pod.identity, attempt=1)) for pod in pods]
    planned = plan(old, pods, later(60), launchers=launchers(failure(pods[1])))
    assert planned.status.failures[0].action == "RestartInPlace"


def test_checkpoint_in_a_pod_is_ignored_in_scope_pod_or_with_one_pod() -> None:
    for scope in ("Pod", "InPlace"):
        job, pods = in_place(restart={"scope": scope})
        assert not plan(job, pods, later(50), launchers=saying("Pod")).decided
    job = fresh_job(replicas=1, restart={"scope": "InPlace"})
    job = settled(job, [], later(0))
    pods = [member_pod(job, 0)]
    job = settled(job, pods, later(10))
    assert not plan(job, pods, later(50), launchers=saying()).decided


def test_no_pod_joins_if_rank_0_saved_in_its_pod() -> None:
    job, pods = elastic_job(replicas=2, maxReplicas=3, growAfterSeconds=30)
    job = stored(job, plan(job, pods, later(50), launchers=saying()))
    waiting = member_pod(job, 2)
    known = knowing([*pods, waiting], 1)
    planned = plan(job, [*pods, waiting], later(900), launchers=replace(saying(), **known))
    assert group(planned).members == "0-1"
    without = job.status.noting(saved_in_pod=None)
    job = replace(job, status=without)
    planned = plan(job, [*pods, waiting], later(900), launchers=replace(LISTENS, **known))
    assert event_reasons(planned) == ["GroupGrown"]


def test_checkpoint_path_in_a_pod_warns_at_the_first_start() -> None:
    command = ["python", "train.py", "$(DDP_CHECKPOINT_DIR)/snapshot.pt"]
    job = fresh_job(replicas=2, template=template(container(command=command)))
    created = plan(job, [], later(0))
    assert event_reasons(created) == ["PodsCreated", "CheckpointInPod"]
    assert "/checkpoints is on each pod's own disk" in created.events[1].message
    shared = {"persistentVolumeClaim": "nfs"}
    for fields in ({"checkpoint": shared, "replicas": 2}, {"replicas": 1}):
        job = fresh_job(template=template(container(command=command)), **fields)
        assert event_reasons(plan(job, [], later(0))) == ["PodsCreated"]


def test_checkpoint_path_that_memory_keeps_does_not_warn() -> None:
    command = ["python", "train.py", "$(DDP_CHECKPOINT_DIR)"]
    env = [{"name": "DDP_CHECKPOINTS_IN_MEMORY", "value": "/checkpoints"}]
    made = template(container(command=command, env=env))
    job = fresh_job(replicas=2, template=made, memoryCheckpoint={"sizeLimit": "1Gi"})
    assert event_reasons(plan(job, [], later(0))) == ["PodsCreated"]

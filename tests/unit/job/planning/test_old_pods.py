"""Tests of old pods that new pods wait for."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.places.old_pods import COLLECTION_SECONDS, SILENT_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import (
    condition,
    ended,
    fresh_job,
    later,
    ready,
    running_job,
    stored,
)


def restarting(**restart: Any) -> tuple[DDPJob, PodState, PodState]:
    """Return a job with a gang that restarts after pod 1 failed, and its old pods."""
    job, pods = running_job(restart=restart)
    failed = ended(job, 1, code=1, at=60)
    job = stored(job, plan(job, [pods[0], failed], later(60)))
    assert job.status.attempt == 1
    return job, pods[0], failed


def terminating(pod: PodState, at: float, grace: float = 15) -> PodState:
    return replace(pod, deleting=True, ends_by=later(at + grace))


def test_new_gang_waits_for_the_old_pods() -> None:
    job, old, failed = restarting()
    planned = plan(job, [old, failed], later(60))
    assert (planned.create, set(planned.delete)) == ((), {old.key, failed.key})
    assert condition(planned, "Running") == ("False", "WaitingForOldPods")
    assert planned.status.phase == "Restarting"
    assert planned.status.message == "waiting for old pods to end: digits-0-0"
    job = stored(job, planned)
    going = terminating(old, 61)
    waiting = plan(job, [going], later(70))
    assert (waiting.create, waiting.delete) == ((), ())
    assert waiting.requeue_at == later(61 + 15 + SILENT_SECONDS)
    over = replace(ended(job, 0, code=143, attempt=0), deleting=True)
    assert len(plan(job, [over], later(71)).create) == 2, "an ended pod writes nothing"
    assert len(plan(job, [], later(71)).create) == 2


def test_wait_for_an_old_pod_ends() -> None:
    """Usually the node of such a pod is lost for an unknown time."""
    job, old, _ = restarting()
    going = terminating(old, 61)
    assert plan(job, [going], later(61 + 14 + SILENT_SECONDS)).create == ()
    planned = plan(job, [going], later(61 + 15 + SILENT_SECONDS))
    assert len(planned.create) == 2
    assert condition(planned, "PodsCreated") == ("True", "Created")


def test_unscheduled_old_pod_is_not_waited_for() -> None:
    job, old, _ = restarting()
    unplaced = replace(old, node="", phase="Pending")
    planned = plan(job, [unplaced], later(61))
    assert (planned.create, planned.delete) == ((), (unplaced.key,))
    assert len(plan(job, [replace(unplaced, deleting=True)], later(61)).create) == 2


def test_replace_when_terminating_creates_at_once() -> None:
    job, old, failed = restarting(replaceWhen="Terminating")
    assert len(plan(job, [old, failed], later(60)).create) == 2


@pytest.mark.parametrize(
    ("wanted", "created"),
    [({}, 1), ({"replaceWhen": "Terminating"}, 1), ({"replaceWhen": "Gone"}, 0)],
)
def test_replace_when_decides_about_a_single_replacement(
    wanted: dict[str, str], created: int
) -> None:
    job, pods = running_job(restart={"scope": "Pod", **wanted})
    leaving = terminating(pods[1], 60)
    job = stored(job, plan(job, [pods[0], leaving], later(60)))
    assert job.status.bookkeeping.replacing == (1,)
    planned = plan(job, [pods[0], leaving], later(60))
    assert len(planned.create) == created
    assert planned.fence == (leaving.key,)
    assert len(plan(job, [pods[0]], later(61)).create) == 1


class TestEarlierJob:
    """Pods of an earlier job with the same name may still run."""

    def earlier(self, job: DDPJob, **state: Any) -> PodState:
        return ready(job, 0, attempt=3, owner_uid="another", **state)

    def test_terminating_pod_of_an_earlier_job_is_waited_for(self) -> None:
        job = fresh_job()
        going = self.earlier(job, deleting=True, ends_by=later(30))
        planned = plan(job, [going], later(1))
        assert (planned.create, planned.delete) == ((), ())
        assert (planned.status.phase, planned.status.reason) == ("Pending", "WaitingForOldPods")
        assert len(plan(job, [], later(2)).create) == 2

    def test_running_pod_of_an_earlier_job_is_waited_for_briefly(self) -> None:
        job = fresh_job()
        planned = plan(job, [self.earlier(job)], later(1))
        assert planned.create == ()
        assert planned.requeue_at == later(COLLECTION_SECONDS)
        # No garbage collector deletes them.
        assert len(plan(job, [self.earlier(job)], later(COLLECTION_SECONDS)).create) == 2

"""Tests of gangs with nodes for only some of their pods."""

from dataclasses import replace

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.convergence import report_refusal
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import (
    NOW,
    condition,
    ended,
    event_reasons,
    fresh_job,
    later,
    pod,
    ready,
    stored,
    with_status,
)

FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def created(**spec: object) -> DDPJob:
    """Return a job of three pods that were just created."""
    job = fresh_job(**{"replicas": 3, "schedulingTimeoutSeconds": 600, **spec})
    return stored(job, plan(job, [], NOW))


def placed(job: DDPJob, index: int) -> PodState:
    return pod(job, index, node=f"node-{index}")


def waiting(job: DDPJob, index: int, message: str = FULL) -> PodState:
    return pod(job, index, waiting="Unschedulable", waiting_message=message)


def test_partly_scheduled_gang_releases_its_nodes() -> None:
    job = created()
    pods = [placed(job, 0), waiting(job, 1), waiting(job, 2)]
    early = plan(job, pods, later(599))
    assert not early.decided
    assert early.requeue_at == later(600)

    decision = plan(job, pods, later(600))
    assert decision.decided
    assert event_reasons(decision) == ["SchedulingTimeout"]
    assert condition(decision, "Restarting") == ("True", "SchedulingTimeout")
    assert "only 1 of 3 pods got a node" in decision.status.message
    assert f"digits-0-1, digits-0-2: {FULL}" in decision.status.message
    status = decision.status
    assert (status.attempt, status.bookkeeping.scheduling_retries) == (1, 1)
    assert (status.restarts, status.disruptions) == (0, 0), "a scheduling timeout is not charged"


def test_gang_is_created_again_after_a_pause() -> None:
    job = created()
    job = stored(job, plan(job, [placed(job, 0), waiting(job, 1), waiting(job, 2)], later(600)))
    old = [placed(created(), 0), waiting(created(), 1), waiting(created(), 2)]
    pausing = plan(job, old, later(601))
    assert pausing.create == ()
    assert set(pausing.delete) == {gone.key for gone in old}
    due = pausing.requeue_at
    assert due is not None
    assert later(610) <= due <= later(620)
    assert "digits-0-1" in pausing.status.message
    again = plan(stored(job, pausing), [], due)
    assert [identity.pod_name("digits") for identity in again.create] == [
        "digits-1-0", "digits-1-1", "digits-1-2"
    ]  # fmt: skip


@pytest.mark.parametrize(("retries", "seconds"), [(0, 10), (1, 20), (5, 320), (6, 600), (999, 600)])
def test_pauses_double_up_to_ten_minutes(retries: int, seconds: int) -> None:
    job = with_status(created(), scheduling_retries=retries)
    pods = [placed(job, 0), waiting(job, 1), waiting(job, 2)]
    due = plan(job, pods, later(600)).status.next_start_time
    assert due is not None
    assert later(600 + seconds) <= due <= later(600 + 2 * seconds)


def test_pauses_of_two_jobs_differ() -> None:
    pauses = set()
    for number in range(20):
        job = replace(with_status(created(), scheduling_retries=5), uid=f"job-{number}")
        pods = [placed(job, 0), waiting(job, 1), waiting(job, 2)]
        pauses.add(plan(job, pods, later(600)).status.next_start_time)
    assert len(pauses) > 15


class TestQuota:
    """Pods beyond a quota count as unscheduled; existing pods hold resources."""

    def refused(self, *, at: float = 60) -> DDPJob:
        job = fresh_job(replicas=3, schedulingTimeoutSeconds=600)
        for now in (later(at), later(at + 60)):
            planned = plan(job, [], now)
            assert planned.seen is not None
            job, pods = replace(job, status=planned.seen), planned.create
            held = report_refusal(job, "PodsForbidden", "exceeded quota: gpus", now, wanted=pods)
            job = stored(job, held)
        return job

    def test_gang_with_half_of_its_quota_releases_it(self) -> None:
        job = self.refused()
        pods = [waiting(job, 0), placed(job, 1)]
        assert not plan(job, pods, later(659)).decided
        assert plan(job, pods, later(600)).requeue_at == later(660)
        decision = plan(job, pods, later(660))
        assert event_reasons(decision) == ["SchedulingTimeout"]
        assert "only 1 of 3 pods got a node" in decision.status.message
        assert "digits-0-2: exceeded quota: gpus" in decision.status.message
        assert decision.status.gaps == ()
        after = plan(stored(job, decision), pods, later(661))
        assert set(after.delete) == {gone.key for gone in pods}
        assert after.create == ()

    def test_gang_without_quota_waits(self) -> None:
        job = self.refused()
        assert not plan(job, [], later(99999)).decided
        assert not plan(job, [ended(job, 0, code=0)], later(99999)).decided

    def test_gang_with_all_pods_created_later_waits(self) -> None:
        job = self.refused()
        job = stored(job, plan(job, [placed(job, 0), placed(job, 1)], later(100)))
        found = [(gap.reason, gap.node_ranks) for gap in job.status.gaps]
        assert found == [("Initializing", "0-1"), ("Unscheduled", "2")]
        pods = [placed(job, index) for index in range(3)]
        assert not plan(job, pods, later(99999)).decided

    @pytest.mark.parametrize("reason", ["NameTaken", "ServerError"])
    def test_other_refusal_is_no_missing_quota(self, reason: str) -> None:
        job = fresh_job(replicas=3, schedulingTimeoutSeconds=600)
        job = stored(job, report_refusal(job, reason, "no", later(60)))
        assert not plan(job, [placed(job, 0)], later(99999)).decided


@pytest.mark.parametrize(
    ("placed_pods", "timeout"), [(0, 600), (3, 600), (1, None)], ids=["none", "all", "no timeout"]
)
def test_gang_without_a_partial_placement_or_timeout_waits(
    placed_pods: int, timeout: int | None
) -> None:
    job = created(schedulingTimeoutSeconds=timeout)
    pods = [placed(job, i) if i < placed_pods else waiting(job, i) for i in range(3)]
    planned = plan(job, pods, later(99999))
    assert (planned.decided, planned.requeue_at) == (False, None)


def test_running_gang_resets_its_retries() -> None:
    job = with_status(created(), scheduling_retries=4)
    running = plan(job, [ready(job, index) for index in range(3)], later(60))
    assert running.status.bookkeeping.scheduling_retries == 0


def test_message_names_every_cause_and_few_pods() -> None:
    job = created(replicas=8)
    pods = [placed(job, 0), *(waiting(job, i) for i in range(1, 7)), waiting(job, 7, "quota")]
    message = plan(job, pods, later(600)).status.message
    assert f"digits-0-1, digits-0-2, digits-0-3 and 3 more: {FULL}" in message
    assert "digits-0-7: quota" in message

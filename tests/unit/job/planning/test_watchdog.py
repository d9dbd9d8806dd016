"""Tests of hangs: a trainer that answers without progress hangs; a silent one only warns."""

from dataclasses import replace

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Progress, SlowRank
from ddp_operator.api.status.world import World
from ddp_operator.hang.result import Hang, HangKind
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Node
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.job.builders import (
    condition,
    does_nothing,
    edited,
    ended,
    event_reasons,
    later,
    ready,
    running_job,
    stored,
    with_status,
)
from tests.unit.job.status.test_progress import report

DEADLINE = 60
LATEST = DEADLINE + 1
"""Stored times have no fractions, so the limit is one second later."""
RUNNING_SINCE = 10
"""Seconds after NOW when `running_job` starts to run."""


def watched_job(**spec: object) -> tuple[DDPJob, list[PodState]]:
    job, pods = running_job(progressDeadlineSeconds=DEADLINE, **spec)
    return job, [replace(pod, address=f"10.0.0.{i}:29501") for i, pod in enumerate(pods)]


def reported(job: DDPJob, pods: list[PodState], heard: Report) -> DDPJob:
    """Return the job after a report."""
    return stored(job, plan(job, pods, heard.received, report=heard))


def test_step_beyond_the_deadline_restarts_the_gang() -> None:
    job, pods = watched_job()
    job = reported(job, pods, report(7, received=20))
    assert does_nothing(plan(job, pods, later(80), report=report(7, received=80)))
    planned = plan(job, pods, later(81), report=report(7, received=81))
    assert planned.decided
    assert (planned.status.attempt, planned.status.restarts) == (1, 1)
    assert event_reasons(planned) == ["Restarting"]
    [failure] = planned.status.failures
    assert (failure.reason, failure.class_) == ("NoProgress", "Application")
    assert (failure.rank, failure.index, failure.pod) == (None, 0, pods[0].key.name)
    assert "stuck at step 7 for 61 s" in failure.message


def test_slow_rank_before_a_hang_is_named_but_not_blamed() -> None:
    job, pods = watched_job()
    pods[1] = replace(pods[1], node="node-b")
    job = reported(job, pods, report(7, received=20))
    slow = SlowRank(rank=1, ratio=2.0, seconds_per_step=0.1, since=later(20), pod=pods[1].key.name)
    job = with_status(job, slow_rank=slow)
    [failure] = plan(job, pods, later(81), report=report(7, received=81)).status.failures
    assert (failure.rank, failure.node) == (None, "")
    assert "; rank 1 was slow before" in failure.message


def test_deadline_starts_when_the_attempt_runs() -> None:
    job, pods = watched_job()
    early = report(7, received=2)  # pod 0 started before the others
    job = stored(job, plan(job, pods, early.received, report=early))
    assert does_nothing(plan(job, pods, later(70), report=report(7, first_received=2, received=70)))
    hang = report(7, first_received=2, received=71)
    assert plan(job, pods, later(71), report=hang).decided


def test_same_step_of_an_earlier_attempt_is_new() -> None:
    job, pods = watched_job()
    job = with_status(job, progress=Progress(step=7, updated_at=later(2)))
    assert does_nothing(plan(job, pods, later(400), report=report(7, received=400)))
    heard = report(7, first_received=400, received=460)
    assert does_nothing(plan(job, pods, later(460), report=heard))
    heard = report(7, first_received=400, received=461)
    assert plan(job, pods, later(461), report=heard).decided


def test_missing_reports_are_no_hang() -> None:
    job, pods = watched_job()
    heard = report(7, received=20)
    job = reported(job, pods, heard)
    # An unreachable trainer has an old report.
    assert does_nothing(plan(job, pods, later(10_000), report=heard))
    # A restarted operator has no report.
    planned = plan(job, pods, later(10_000), report=None)
    assert does_nothing(planned)
    assert planned.events == ()
    # A new step shows that the trainer did not hang.
    assert does_nothing(plan(job, pods, later(10_001), report=report(8, received=10_001)))
    # The same step in a new report shows a hang.
    assert plan(job, pods, later(10_001), report=report(7, received=10_001)).decided


@pytest.mark.parametrize("total", [7, 6], ids=["last step", "more steps than planned"])
def test_work_after_the_last_step_is_no_hang(total: int) -> None:
    """A script evaluates and exports for as long as it likes."""
    job, pods = watched_job()
    job = reported(job, pods, report(7, received=20, totalSteps=total))
    heard = report(7, first_received=20, received=9000, totalSteps=total)
    planned = plan(job, pods, later(9000), report=heard)
    assert does_nothing(planned)
    assert planned.events == ()
    since = "2026-03-01T12:00:20Z"
    assert planned.status.message == (
        f"all 2 pods are ready; the script works after its last step, since {since}"
    )
    # A restarted script that begins with its export does not report before the group forms.
    silent = replace(heard, status=None)
    assert does_nothing(plan(job, pods, later(9000), report=silent))
    limited = plan(edited(job, activeDeadlineSeconds=600), pods, later(9000), report=heard)
    assert limited.status.reason == "DeadlineExceeded"


def test_restart_after_the_last_step_trains_with_a_deadline() -> None:
    """It resumes from a checkpoint before the last step."""
    job, pods = watched_job()
    job = reported(job, pods, report(7, received=20, totalSteps=7))
    job = reported(job, pods, report(5, received=30, totalSteps=7))
    assert job.status.message == "all 2 pods are ready"
    hang = report(5, first_received=30, received=91, totalSteps=7)
    assert plan(job, pods, later(91), report=hang).decided


def test_no_deadline_means_no_hang() -> None:
    job, pods = running_job()
    job = reported(job, pods, report(7, received=20))
    planned = plan(job, pods, later(10**6), report=report(7, received=10**6))
    assert does_nothing(planned)
    assert planned.requeue_at is None


def test_missing_progress_reports_are_warned_of_once() -> None:
    job, pods = watched_job()
    planned = plan(job, pods, later(RUNNING_SINCE), report=None)
    due = later(RUNNING_SINCE + LATEST)
    assert planned.requeue_at == due
    planned = plan(job, pods, due, report=None)
    assert does_nothing(planned)
    assert event_reasons(planned) == ["NoProgressReports"]
    assert condition(planned, "Running") == ("True", "NoProgressReports")
    assert planned.status.phase == "Running"
    assert planned.requeue_at is None
    job = stored(job, planned)
    assert plan(job, pods, later(10**6), report=None).events == ()
    # The first report clears the warning.
    planned = plan(job, pods, later(200), report=report(1, received=200))
    assert condition(planned, "Running") == ("True", "PodsReady")
    assert planned.status.reason == "PodsReady"


def test_hang_without_budget_fails_the_job() -> None:
    job, pods = watched_job(restart={"maxRestarts": 0})
    job = reported(job, pods, report(7, received=20))
    planned = plan(job, pods, later(90), report=report(7, received=90))
    assert planned.status.phase == "Failed"
    assert "stuck at step 7" in planned.status.message
    # Stacks are requested before the pods are deleted.
    cleaning = plan(stored(job, planned), pods, later(91))
    assert set(cleaning.dump_stacks) == {"10.0.0.0:29501", "10.0.0.1:29501"}


def test_stacks_of_hung_pods_are_requested_before_deletion() -> None:
    job, pods = watched_job()
    job = reported(job, pods, report(7, received=20))
    decision = plan(job, pods, later(81), report=report(7, received=81))
    assert decision.dump_stacks == ()
    job = stored(job, decision)
    acting = plan(job, pods, later(80))
    assert set(acting.dump_stacks) == {"10.0.0.0:29501", "10.0.0.1:29501"}
    assert {pod.key for pod in pods} == set(acting.delete)
    gone = [replace(pod, deleting=True) for pod in pods]
    new = [ready(job, index, address=f"10.0.1.{index}:29501") for index in range(2)]
    assert plan(job, [*gone, *new], later(81)).dump_stacks == ()


class TestLaunchersShowTheRank:
    """Traces from the launchers explain a hang before the restart."""

    REQUESTS = ((0, "10.0.0.0:29501"), (1, "10.0.0.1:29501"))
    FOUND = Hang(
        (1,), "rank 1 did not enter all_reduce 4; 1 rank waits; it is at data.py:7 in load"
    )

    def hanging(self, **spec: object) -> tuple[DDPJob, list[PodState], Report]:
        job, pods = watched_job(**spec)
        pods[1] = replace(pods[1], node="node-b")
        job = reported(job, pods, report(7, received=20))
        return job, pods, report(7, received=81)

    def test_hang_waits_for_traces(self) -> None:
        job, pods, heard = self.hanging()
        requesting = plan(job, pods, later(81), report=heard, hang=None)
        assert does_nothing(requesting)
        assert requesting.ask_traces == self.REQUESTS
        early = plan(job, pods, later(80), report=report(7, received=80), hang=None)
        assert early.ask_traces == ()

    def test_traces_explain_the_hang(self) -> None:
        job, pods, heard = self.hanging()
        planned = plan(job, pods, later(81), report=heard, hang=self.FOUND)
        assert (planned.decided, planned.ask_traces) == (True, ())
        [failure] = planned.status.failures
        assert (failure.rank, failure.index, failure.node) == (1, 1, pods[1].node)
        assert (failure.reason, failure.class_) == ("NoProgress", "Application")
        assert failure.charged
        assert failure.message == f"stuck at step 7 for 61 s; {self.FOUND.sentence}"
        assert self.FOUND.sentence in planned.events[0].message

    @pytest.mark.parametrize(
        ("kinds", "class_", "charged"),
        [
            (("stopped", "kernel", "unreachable", "device"), "Infrastructure", False),
            (("script", "gil", "ended", "unknown"), "Application", True),
        ],
    )
    def test_hang_outside_the_script_is_not_charged(
        self, kinds: tuple[HangKind, ...], class_: str, *, charged: bool
    ) -> None:
        job, pods, heard = self.hanging()
        for kind in kinds:
            planned = plan(job, pods, later(81), report=heard, hang=Hang((1,), "it waits", kind))
            [failure] = planned.status.failures
            assert (failure.class_, failure.charged) == (class_, charged)
            assert failure.node == "node-b"
            assert (planned.status.restarts, planned.status.disruptions) == (charged, not charged)
            assert ("(not charged" in planned.events[0].message) is not charged

    @pytest.mark.parametrize("kind", ["stopped", "network", "script"])
    def test_job_that_always_hangs_fails(self, kind: HangKind) -> None:
        job, pods = watched_job(restart={"maxRestarts": 1})
        hangs, at = 0, 20
        while not job.status.finished and hangs < 20:
            job = with_status(job, running_since=later(at))
            pods = [
                replace(ready(job, index, node=f"node-{index}"), address=f"10.0.0.{index}:29501")
                for index in range(2)
            ]
            attempt = job.status.attempt
            job = reported(job, pods, report(7, received=at + 1, attempt=attempt))
            heard = report(7, first_received=at + 1, received=at + 90, attempt=attempt)
            found = Hang((1,) if kind != "network" else (), "found", kind)
            job = stored(job, plan(job, pods, later(at + 90), report=heard, hang=found))
            job = with_status(job, next_start_time=None)
            hangs, at = hangs + 1, at + 1000
        assert (job.status.phase, job.status.reason) == ("Failed", "MaxRestartsExceeded")
        # Three node failures are free; further ones are charged.
        assert hangs == (2 if kind == "script" else 5)

    def test_bad_node_explains_the_hang(self) -> None:
        job, pods, heard = self.hanging()
        nodes = [Node("node-a", {}, boot_id="a"), Node("node-b", {}, bad="XidCriticalError")]
        for found, rank in ((self.FOUND, 1), (Hang(), None)):
            planned = plan(job, pods, later(81), report=heard, hang=found, nodes=nodes)
            [failure] = planned.status.failures
            assert (failure.index, failure.node, failure.charged) == (1, "node-b", False)
            assert failure.rank == rank, "the slowest rank is on the other node"
            start = "its node is broken (XidCriticalError); stuck at step 7 for 61 s"
            assert failure.message.startswith(start)
            assert len(failure.message) <= 200
        # The rank that the others wait for is on another node.
        elsewhere = Hang((0,), "rank 0 did not enter all_reduce 4", "script")
        planned = plan(job, pods, later(81), report=heard, hang=elsewhere, nodes=nodes)
        assert planned.status.failures[-1].class_ == "Application"

    @pytest.mark.parametrize(
        ("hang", "rank", "node"),
        [
            (Hang((4, 5, 6, 7), "ranks 4-7 did not come", "unreachable"), None, "node-b"),
            (Hang((0, 4), "deadlock"), None, ""),
            (Hang(), None, ""),
        ],
        ids=["one pod", "two pods", "no traces"],
    )
    def test_hung_ranks_of_one_pod_name_its_node(
        self, hang: Hang, rank: int | None, node: str
    ) -> None:
        job, pods, heard = self.hanging(nprocPerNode=4)
        [failure] = plan(job, pods, later(81), report=heard, hang=hang).status.failures
        assert (failure.index, failure.rank, failure.node) == (int(bool(node)), rank, node)

    @settings(max_examples=30)
    @given(st.data())
    def test_steps_within_the_deadline_request_no_traces(self, data: st.DataObject) -> None:
        """Validation, compilation and slow checkpoints are no hangs."""
        job, pods = watched_job()
        at, step = 20, 1
        job = reported(job, pods, report(step, received=at))
        for _ in range(data.draw(st.integers(1, 5))):
            still = data.draw(st.integers(1, DEADLINE))
            for moment in (at + still // 2, at + still):
                heard = report(step, received=moment)
                planned = plan(job, pods, later(moment), report=heard, hang=None)
                assert (planned.ask_traces, planned.decided) == ((), False)
            at, step = at + still, step + 1
            job = reported(job, pods, report(step, received=at))

    def test_unreachable_pod_skips_the_traces(self) -> None:
        job, pods, heard = self.hanging()
        pods[1] = replace(pods[1], address="")
        planned = plan(job, pods, later(81), report=heard, hang=None)
        assert planned.ask_traces == ()
        assert planned.decided


@pytest.mark.parametrize("code", [1, 137])
def test_crash_is_no_hang(code: int) -> None:
    job, pods = watched_job()
    job = reported(job, pods, report(7, received=20))
    pods[1] = replace(ended(job, 1, code=code, at=85), address=pods[1].address)
    planned = plan(job, pods, later(90), report=report(7, received=90))
    assert planned.status.failures[-1].reason == "Error"
    acting = plan(stored(job, planned), pods, later(90))
    assert acting.delete
    assert acting.dump_stacks == ()


class TestBeforeTheFirstStep:
    """A running launcher answers that its script has reported nothing yet."""

    def lives(self, received: float, attempt: int = 0) -> Report:
        return replace(report(0, received=received, attempt=attempt), status=None)

    def test_first_step_has_600_seconds(self) -> None:
        job, pods = watched_job(restart={"scope": "Pod"})
        early = RUNNING_SINCE + 599
        for moment in (RUNNING_SINCE, early):
            heard = self.lives(moment)
            requesting = plan(job, pods, later(moment), report=heard, hang=None)
            assert (requesting.ask_traces, requesting.decided) == ((), False)
        planned = plan(job, pods, later(early), report=self.lives(early))
        assert does_nothing(planned)
        assert planned.events == (), "the deadline will detect a hang"
        due = RUNNING_SINCE + 600
        planned = plan(job, pods, later(due), report=self.lives(due))
        assert planned.decided
        [failure] = planned.status.failures
        assert (failure.reason, failure.class_) == ("NoProgress", "Application")
        assert (failure.rank, failure.node) == (None, "")
        assert "no step completed within 600 s" in failure.message

    def test_first_step_has_three_times_a_long_deadline(self) -> None:
        job, pods = running_job(progressDeadlineSeconds=1000, restart={"scope": "Pod"})
        due = RUNNING_SINCE + 3 * 1001
        assert does_nothing(plan(job, pods, later(due - 1), report=self.lives(due - 1)))
        assert plan(job, pods, later(due), report=self.lives(due)).decided

    def test_script_that_never_reported_is_no_hang(self) -> None:
        job, pods = watched_job()
        planned = plan(job, pods, later(10_000), report=self.lives(10_000))
        assert not planned.decided
        assert event_reasons(planned) == ["NoProgressReports"]

    def test_script_that_reported_in_an_earlier_attempt_hangs(self) -> None:
        job, pods = watched_job()
        job = with_status(job, progress=Progress(step=7, updated_at=later(2)))
        due = RUNNING_SINCE + 600
        assert does_nothing(plan(job, pods, later(due - 1), report=self.lives(due - 1)))
        assert plan(job, pods, later(due), report=self.lives(due)).decided

    def test_script_that_reported_in_this_attempt_is_no_hang(self) -> None:
        job, pods = watched_job(restart={"scope": "Pod"})
        job = reported(job, pods, report(7, received=20))
        assert does_nothing(plan(job, pods, later(10_000), report=self.lives(10_000)))

    def test_only_a_current_answer_shows_a_hang(self) -> None:
        job, pods = watched_job(restart={"scope": "Pod"})
        assert not plan(job, pods, later(10_000), report=self.lives(100)).decided
        assert not plan(job, pods, later(10_000), report=None).decided
        of_another = self.lives(10_000, attempt=1)
        assert not plan(job, pods, later(10_000), report=of_another).decided

    def test_changed_group_restarts_the_first_step_limit(self) -> None:
        job, pods = watched_job(restart={"scope": "Pod"})
        world = World(generation=0, members="0-1", changed_at=later(500))
        job = with_status(job, world=world)
        assert does_nothing(plan(job, pods, later(1000), report=self.lives(1000)))
        assert plan(job, pods, later(1100), report=self.lives(1100)).decided

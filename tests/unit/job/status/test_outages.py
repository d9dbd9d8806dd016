"""Tests of outages: the lost time is the added duration of the job."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Goodput
from ddp_operator.engine.status_patch import News, news
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.job.status.progress import Report
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.job.builders import edited, ended, later, ready
from tests.unit.job.status.test_goodput import after_failure, current, goodput, look, trained
from tests.unit.job.status.test_progress import report

POLL_SECONDS = 10
TOLERANCE_SECONDS = 3
"""For each failure: two halves of a step, and whole seconds."""
ESTIMATE_SECONDS = POLL_SECONDS
"""For each failure of trainers that do not count: a checkpoint may be unreported."""


def said(step: int, at: float, *, attempt: int = 0, **more: Any) -> Report:
    """Return a report about a step that was just completed."""
    time = later(at).isoformat()
    return report(step, received=at, attempt=attempt, lastStepTime=time, **more)


def restarted(*, saved: bool = True) -> tuple[DDPJob, list[PodState]]:
    """Return a gang that failed in step 121, at second 112, and is ready since 120."""
    job, _ = trained()
    checkpoint = {"step": 100} | ({"time": later(90).isoformat()} if saved else {})
    return after_failure(job, 112, 120, said(120, 110, checkpoint=checkpoint))


def lost(job: DDPJob) -> int:
    return goodput(job).lost_seconds


def begun(step: int, at: float) -> dict[str, Any]:
    """Return the trainer's report about the start of its group."""
    return {"resumed": {"step": step, "time": later(at).isoformat()}}


def firsts(*steps: tuple[int, float]) -> dict[str, Any]:
    """Return the trainer's report about the first steps of groups."""
    return {"firstSteps": [{"step": n, "time": later(at).isoformat()} for n, at in steps]}


def counted(seconds: float, formed: float, first: tuple[int, float]) -> dict[str, Any]:
    """Return the report of a trainer that counts its training time."""
    resumed = begun(first[0] - 1, formed)
    return {**resumed, **firsts(first), "trainedSeconds": seconds}


def unheard(scope: str = "Gang") -> tuple[DDPJob, list[PodState]]:
    """Return a job that failed at 112 before its first report, and is ready since 120."""
    job, _ = trained(restart={"scope": scope})
    return after_failure(job, 112, 120)


def spent(job: DDPJob) -> tuple[int, int, int]:
    books = goodput(job)
    return books.starting_seconds, books.training_seconds, books.lost_seconds


def test_outage_continues_until_the_first_step() -> None:
    job, pods = restarted()
    assert (job.status.phase, lost(job)) == ("Running", 30)
    job = look(job, pods, 131, said(103, 131, attempt=1))
    assert (goodput(job).training_seconds, lost(job)) == (78, 41)
    assert goodput(job).outage is None
    assert goodput(job).accounted_until == later(131)


def checkpoint(step: int, at: float) -> dict[str, Any]:
    return {"checkpoint": {"step": step, "time": later(at).isoformat()}}


@pytest.mark.parametrize(
    ("before", "step", "at", "more", "expected"),
    [
        (restarted, 119, 131, checkpoint(118, 108) | counted(96, 130, (119, 131)), (7, 96, 23)),
        (restarted, 111, 141, checkpoint(110, 140), (7, 78, 51)),
        (restarted, 111, 141, checkpoint(110, 140) | counted(93, 125, (101, 126)), (7, 78, 36)),
        (restarted, 101, 226, checkpoint(110, 100) | counted(100, 125, (1, 126)), (7, 0, 114)),
        (
            restarted,
            181,
            210,
            counted(158, 126, (101, 130)) | firsts((1, 12), (101, 130)),
            (7, 78, 40),
        ),
        (restarted, 103, 131, {"trainedSeconds": 5}, (7, 78, 41)),
        (restarted, 103, 131, counted(0, 125, (101, 129)), (7, 0, 117)),
        (restarted, 103, 131, counted(1e9, 125, (101, 129)), (7, 117, 0)),
        (unheard, 31, 131, begun(30, 130), (7, 100, 19)),
        (unheard, 31, 131, begun(30, 130) | {"trainedSeconds": 29}, (7, 29, 90)),
        (trained, 10, 60, begun(0, 30) | firsts((1, 50)), (45, 0, 0)),
    ],
    ids=[
        "checkpoint after the last report is kept",
        "checkpoint of the new group keeps nothing",
        "checkpoint of the new group keeps nothing, counted",
        "group that starts at step 0 keeps nothing",
        "late report ends the outage at the first step",
        "count without a group is ignored",
        "low count changes only the time after the start",
        "high count changes only the time after the start",
        "unreported group without counts has trained",
        "unreported group without first steps is lost",
        "reported first step ends the start",
    ],
)
def test_first_report_after_a_restart_books_its_time(
    before: Callable[[], tuple[DDPJob, list[PodState]]],
    step: int,
    at: float,
    more: dict[str, Any],
    expected: tuple[int, int, int],
) -> None:
    job, pods = before()
    job = look(job, pods, at + 1, said(step, at, attempt=job.status.attempt, **more))
    assert spent(job) == expected
    assert (goodput(job).outage, goodput(job).unreported) == (None, ())


@pytest.mark.parametrize("at", [-500, 0, 111, 112])
def test_step_before_the_restart_does_not_end_the_outage(at: float) -> None:
    job, pods = restarted()
    job = look(job, pods, 131, replace(said(999, at, attempt=1), received=later(131)))
    assert goodput(job).outage is not None


def test_step_in_the_future_ends_the_outage_now() -> None:
    job, pods = restarted()
    job = look(job, pods, 131, replace(said(101, 10**6, attempt=1), received=later(131)))
    assert goodput(job).accounted_until == later(131)


def test_outage_starts_when_the_pod_ended() -> None:
    job, pods = trained(restart={"scope": "Pod"})
    job = look(job, [pods[0], ended(job, 1, code=1, at=92)], 112, said(100, 90))
    pods = [pods[0], ready(job, 1, replacement=1)]
    job = look(look(job, pods, 115), pods, 118, said(101, 118))
    assert (goodput(job).training_seconds, lost(job)) == (80, 26)


def test_step_of_the_remaining_ranks_does_not_end_the_outage() -> None:
    job, pods = trained(restart={"scope": "Pod"})
    job = look(job, [pods[0], ended(job, 1, code=1, at=112)], 112, said(120, 110))
    pods = [pods[0], replace(ready(job, 1, replacement=1), started=later(120))]
    job = look(job, pods, 122, said(121, 113))
    assert goodput(job).outage is not None
    job = look(job, pods, 131, said(122, 131))
    assert (goodput(job).training_seconds, lost(job)) == (100, 19)


def test_outage_without_a_checkpoint_time_includes_repeats() -> None:
    job, pods = restarted(saved=False)
    job = look(job, pods, 130, said(101, 130, attempt=1))
    job = look(job, pods, 140, said(120, 140, attempt=1))
    assert goodput(job).outage is not None
    job = look(job, pods, 145, said(121, 145, attempt=1))
    assert (goodput(job).training_seconds, lost(job)) == (100, 33)


def test_failure_before_the_next_step_continues_the_outage() -> None:
    job, pods = restarted()
    job, pods = after_failure(job, 125, 150)
    job = look(job, pods, 160, said(101, 160, attempt=2))
    assert (goodput(job).training_seconds, lost(job)) == (78, 70)


def test_suspension_ends_the_outage() -> None:
    job, pods = restarted()
    job = look(edited(job, suspend=True), pods, 130)
    assert (goodput(job).outage, lost(job)) == (None, 40)


def test_end_of_an_outage_is_stored_at_once() -> None:
    job, pods = restarted()
    planned = plan(job, pods, later(131), report=said(101, 131, attempt=1))
    assert news(job.status, planned.status) is News.STATE


def test_report_without_step_time_starts_no_outage() -> None:
    job, pods = trained()
    job = look(job, [pods[0], ended(job, 1, code=1, at=112)], 112, report(120, received=110))
    assert goodput(job).outage is None


def test_start_ends_with_the_first_step() -> None:
    job, pods = trained()
    assert (goodput(job).starting_seconds, goodput(job).accounted_until) == (7, later(12))
    # The group formed at 30; each step takes a second.
    job = look(job, pods, 41, said(10, 40, **begun(0, 30)))
    assert (goodput(job).starting_seconds, goodput(job).accounted_until) == (26, later(31))
    again = look(job, pods, 51, said(20, 50, **begun(0, 30)))
    assert goodput(again) == goodput(job)
    over = [ended(job, index, code=0, at=60) for index in range(2)]
    assert goodput(look(again, over, 60)).training_seconds == 29


def test_restart_before_the_first_step_is_lost_until_that_step() -> None:
    job, pods = trained()
    job = look(job, [pods[0], ended(job, 1, code=1, at=20)], 20)
    pods = current(job)
    heard = said(10, 50, attempt=1, **counted(9, 40, (1, 41)))
    assert spent(look(look(job, pods, 30), pods, 51, heard)) == (15, 9, 21)


def test_hang_is_lost_from_its_last_step() -> None:
    for polled, expected in ((170, 60), (112, 0)):
        job, pods = trained(restart={"scope": "Pod"})
        job = look(job, pods, 111, said(120, 110))
        heard = replace(said(120, 110), received=later(polled))
        job = look(job, [pods[0], ended(job, 1, code=1, at=170)], 170, heard)
        assert lost(job) == expected
        assert job.status.failures[-1].time == later(170)


def test_node_loss_is_lost_from_the_last_step() -> None:
    job, pods = trained(restart={"scope": "Pod"})
    job = look(job, pods, 111, said(120, 110))
    gone = replace(pods[1], disruption="DeletionByTaintManager", deleting=True)
    job = look(job, [pods[0], gone], 165)
    assert (job.status.failures[-1].reason, lost(job)) == ("DeletionByTaintManager", 55)


def test_repeats_of_earlier_groups_steps_are_lost() -> None:
    job, pods = trained(restart={"scope": "Gang"})
    saved = {"step": 10, "time": later(20).isoformat()}
    job = look(job, pods, 111, said(100, 110, checkpoint=saved, **begun(0, 12)))
    # A group that continued at step 100 also fails; the next one starts at step 10.
    job = look(edited(job, masterPort=2000), pods, 112)
    pods = current(job)
    job = look(look(job, pods, 120), pods, 125, said(101, 125, attempt=1, **begun(100, 122)))
    job, pods = after_failure(job, 130, 140)
    job = look(job, pods, 150, said(11, 150, attempt=2, **begun(10, 148)))
    books = goodput(job)
    assert books.outage is not None
    assert books.outage.until_step == 101


def test_repeated_steps_stay_lost_after_a_suspension() -> None:
    job, pods = restarted(saved=False)
    job = look(job, pods, 131, said(40, 131, attempt=1, **begun(0, 121)))
    job = look(edited(job, suspend=True), pods, 140)
    outage = goodput(job).outage
    assert outage is not None
    assert outage.until_step == 121


class Timeline:
    """A training of one step per second, and its operator; times are in seconds."""

    def __init__(self, *, every: int, gang: bool, counts: bool) -> None:
        self.every, self.gang, self.counts = every, gang, counts
        self.job, self.pods = trained(
            restart={
                "scope": "Gang" if gang else "Pod",
                "maxRestarts": 1000,
                "backoff": {"initialSeconds": 0},
            }
        )
        self.at = self.began = 13
        self.step, self.saved = 0, (0, 13, 0)
        self.began_group, self.trained, self.is_first = begun(0, 13), 0, True
        self.heard: Report | None = None

    def train(self, seconds: int) -> None:
        """Complete one step per second."""
        for _ in range(seconds):
            self.at += 1
            self.step += 1
            self.trained += not self.is_first
            self.is_first = False
            if self.step % self.every == 0:
                self.saved = self.step, self.at, self.trained
            if self.at % POLL_SECONDS == 0 or self.books.outage:
                self.hear()

    def hear(self) -> None:
        """Have the operator poll the trainer."""
        status = self.job.status
        identity = Identity(0, status.attempt, status.bookkeeping.replacements.get("0", 0))
        time = later(self.saved[1]).isoformat()
        more = {**self.began_group, "trainedSeconds": self.trained} if self.counts else {}
        saved = {"step": self.saved[0], "time": time}
        heard = said(self.step, self.at, checkpoint=saved, **more)
        self.heard = replace(heard, identity=identity)
        self.look(self.pods)

    def fail(self, seconds: int, *, unseen: int) -> None:
        """Lose a pod, unnoticed for `unseen` seconds; the next group trains after `seconds`."""
        dead = replace(
            ended(self.job, 1, code=1, at=self.at),
            identity=self.pods[1].identity,
            key=self.pods[1].key,
        )
        self.at += unseen
        self.look([self.pods[0], dead])
        status = self.job.status
        if self.gang:
            self.step, _, self.trained = self.saved
            self.pods = [ready(self.job, i, attempt=status.attempt) for i in range(2)]
        else:
            count = status.bookkeeping.replacements["1"]
            # The remaining ranks complete and report their current step.
            self.step, self.at = self.step + 1, self.at + 1
            self.trained += 1
            self.pods[1] = replace(
                ready(self.job, 1, replacement=count), started=later(self.at + seconds // 2)
            )
            self.hear()
        self.at += seconds // 2
        self.look(self.pods)
        self.at += seconds - seconds // 2
        self.began_group, self.is_first = begun(self.step, self.at), True

    def look(self, pods: list[PodState]) -> None:
        self.job = look(self.job, pods, self.at, self.heard)

    @property
    def books(self) -> Goodput:
        return goodput(self.job)


_failures = st.lists(
    st.tuples(st.integers(0, 90), st.integers(2, 60), st.integers(0, 30)), min_size=1, max_size=15
)


@settings(max_examples=20, deadline=None)
@given(_failures, st.integers(5, 40), st.booleans(), st.booleans())
def test_lost_time_is_the_added_duration(
    failures: list[tuple[int, int, int]], every: int, gang: bool, counts: bool
) -> None:
    run = Timeline(every=every, gang=gang, counts=counts)
    run.train(11)
    for before, seconds, unseen in failures:
        run.train(before)
        run.fail(seconds, unseen=unseen)
    run.train(11)
    run.look(
        [
            ended(run.job, i, code=0, at=run.at, replacement=run.pods[i].identity.replacement)
            for i in range(2)
        ]
    )
    assert run.job.status.phase == "Succeeded"
    longer = run.at - run.began - run.step
    tolerance = TOLERANCE_SECONDS + (0 if counts else ESTIMATE_SECONDS)
    assert abs(run.books.lost_seconds - longer) <= tolerance * len(failures)


@pytest.mark.parametrize(
    ("scope", "resumed", "saved_at", "expected"),
    [
        # The first step was complete at 42, and the first one after the restart at 131.
        ("Gang", 30, 90, (37, 48, 41)),
        ("Gang", 0, None, (37, 0, 89)),
        ("Pod", 70, None, (37, 70, 19)),
        ("Pod", 30, 90, (37, 48, 41)),
    ],
    ids=["checkpoint", "nothing saved", "memory", "checkpoint of others"],
)
def test_unreported_group_is_booked_by_the_next_one(
    scope: str, resumed: int, saved_at: float | None, expected: tuple[int, int, int]
) -> None:
    job, pods = unheard(scope)
    assert spent(job) == (7, 100, 8)
    attempt = job.status.attempt
    checkpoint = {"step": resumed, "time": later(saved_at).isoformat()} if saved_at else None
    heard = said(
        resumed + 1,
        131,
        attempt=attempt,
        checkpoint=checkpoint,
        trainedSeconds=expected[1],
        **begun(resumed, 130),
        **firsts((1, 42), (resumed + 1, 131)),
    )
    job = look(job, pods, 132, heard)
    assert (spent(job), goodput(job).unreported) == (expected, ())
    assert spent(look(job, pods, 140, heard)) == expected


def test_late_report_of_a_lost_group_is_counted_once() -> None:
    job, pods = unheard("Pod")
    late = replace(said(70, 111, **counted(69, 41, (1, 42))), received=later(125))
    job = look(job, pods, 125, late)
    # The next group is lost before it has formed.
    job = look(job, [pods[0], ended(job, 1, replacement=1, code=1, at=126)], 126, late)
    assert goodput(job).outage is not None
    pods = [pods[0], ready(job, 1, replacement=2)]
    job = look(job, pods, 130)
    steps = firsts((1, 42), (1, 141))
    job = look(job, pods, 142, said(2, 142, **begun(0, 140), **steps, trainedSeconds=1))
    assert (goodput(job).outage, spent(job)) == (None, (37, 1, 99))


def test_two_unreported_groups_are_both_booked() -> None:
    job, pods = unheard()
    job, pods = after_failure(job, 150, 160)
    steps = firsts((1, 42), (31, 140), (41, 171))
    # The first group saved step 30, and the second one step 40.
    heard = said(41, 171, attempt=2, **begun(40, 170), **steps, trainedSeconds=29 + 9)
    assert spent(look(job, pods, 172, heard)) == (37, 38, 91)


def test_report_of_the_lost_group_books_nothing() -> None:
    job, pods = unheard("InPlace")
    heard = said(70, 111, **counted(69, 40, (1, 42)))
    job = look(job, pods, 122, heard)
    assert (goodput(job).counted_group, len(goodput(job).unreported)) == (None, 1)


def test_completed_job_has_no_unreported_group() -> None:
    job, _ = unheard()
    job = look(job, [ended(job, index, code=0, at=200) for index in range(2)], 200)
    assert (job.status.phase, goodput(job).unreported) == ("Succeeded", ())


def test_start_after_a_suspension_ends_with_its_first_step() -> None:
    job, pods = restarted()
    job = look(job, pods, 125, said(101, 124, attempt=1))
    job, pods = after_failure(job, 130, 135)
    job = look(job, pods, 138, said(50, 137, attempt=2))
    assert goodput(job).outage is not None
    job = look(edited(job, suspend=True), pods, 140)
    job = look(edited(job, suspend=False), [], 150)
    assert goodput(job).outage is not None
    starting = goodput(job).starting_seconds
    attempt = job.status.attempt
    job = look(job, [ready(job, index) for index in range(2)], 160)
    pods = current(job)
    job = look(
        job, pods, 190, said(51, 189, attempt=attempt, **begun(50, 188), **firsts((51, 189)))
    )
    assert goodput(job).starting_seconds - starting >= 29


def test_checkpoint_before_the_first_of_two_failures_is_kept() -> None:
    job, pods = restarted()
    job = look(job, [pods[0], ended(job, 1, code=1, at=125)], 125)
    pods = current(job)
    # The pod saved at its end, after its last report.
    saved = {"step": 122, "time": later(113).isoformat()}
    more = counted(100, 159, (123, 160))
    heard = said(123, 160, attempt=2, checkpoint=saved, **more)
    job = look(look(job, pods, 150), pods, 161, heard)
    assert spent(job) == (7, 100, 48)


def test_unreported_group_during_an_outage_is_booked() -> None:
    job, pods = restarted()
    # The unreported group trained from 130 to its checkpoint at 139.
    job = look(job, [pods[0], ended(job, 1, code=1, at=150)], 160)
    pods = current(job)
    steps = firsts((1, 12), (101, 130), (111, 180))
    heard = said(111, 180, attempt=2, **begun(110, 175), **steps, trainedSeconds=78 + 9)
    job = look(look(job, pods, 170), pods, 181, heard)
    assert spent(job) == (7, 78 + 9, 90 - 9)


@pytest.mark.parametrize("lost_heard", [False, True])
def test_training_after_a_pod_deletion_counts(*, lost_heard: bool) -> None:
    job, pods = trained(restart={"scope": "Pod"})
    heard = said(102, 112, **counted(101, 10, (1, 11)))
    job = look(job, [pods[0], replace(pods[1], deleting=True)], 112, heard)
    # A spare is ready. The old group continues until step 112.
    pods = [pods[0], replace(ready(job, 1, replacement=1), started=later(10))]
    job = look(job, pods, 120)
    if lost_heard:
        heard = said(111, 121, **counted(110, 10, (1, 11)))
        job = look(job, pods, 121, heard)
    # The next group has no step yet.
    job = look(job, pods, 140, replace(said(112, 122, **begun(112, 140)), received=later(140)))
    assert goodput(job).outage is not None
    heard = said(114, 144, **begun(112, 140), **firsts((1, 11), (113, 143)), trainedSeconds=112)
    job = look(job, pods, 145, heard)
    assert (goodput(job).outage, spent(job)) == (None, (6, 111, 21))


def test_restart_by_the_launcher_is_lost_time() -> None:
    job, pods = trained()
    job = look(job, pods, 41, said(10, 40, **counted(9, 15, (1, 31))))
    assert (spent(job), goodput(job).counted_group) == ((26, 0, 0), later(15))
    # The launcher restarted the ranks after 60; they resume at step 25 of second 55.
    job = look(job, pods, 101, said(35, 100, **counted(24 + 10, 80, (26, 90))))
    assert (spent(job), goodput(job).accounted_until) == ((26, 34, 35), later(100))
    again = look(job, pods, 111, said(45, 110, **counted(24 + 20, 80, (26, 90))))
    assert goodput(again) == goodput(job)


def test_count_in_the_termination_message_is_booked() -> None:
    job, _ = restarted()
    words = {"step": 130, "lastStepTime": later(150).isoformat(), "trainedSeconds": 78 + 20}
    words |= begun(100, 129)
    over = [ended(job, index, code=0, at=152) for index in range(2)]
    leader = over[0].exit
    assert leader is not None
    over[0] = replace(over[0], exit=replace(leader, message=json.dumps(words)))
    job = look(job, over, 153)
    assert (job.status.phase, spent(job)) == ("Succeeded", (7, 78 + 20 + 3, 40))


def test_start_without_first_steps_is_not_counted() -> None:
    job, pods = unheard("Pod")
    # The next group fails after 4 reported seconds; then its rank 0 is lost.
    dead = replace(pods[1], exit=ended(job, 1, code=1, at=130).exit)
    job = look(job, [pods[0], dead], 130)
    job = look(job, pods[:1], 132, said(5, 129, **counted(4, 123, (1, 125))))
    job = look(job, [ended(job, 0, code=1, at=134)], 134)
    pods = [ready(job, 0, replacement=1), ready(job, 1, replacement=2)]
    job = look(job, pods, 140)
    assert job.status.phase == "Running"
    heard = replace(said(3, 152, **counted(2, 145, (1, 150))), identity=pods[0].identity)
    assert spent(look(job, pods, 153, heard)) == (107, 2, 38)


def test_only_the_first_group_ends_a_start() -> None:
    job, pods = trained()
    # The group trained before its pods were observed ready, at 12.
    job = look(job, pods, 21, said(11, 20, **counted(10, 8, (1, 10))))
    assert (spent(job), goodput(job).accounted_until) == ((5, 0, 0), later(10))
    job = look(job, pods, 61, said(15, 60, **counted(13 + 1, 40, (14, 59))))
    assert spent(job) == (5, 14, 36)
    # After a suspension there is another start.
    job = look(edited(job, suspend=True), pods, 70)
    job = look(edited(job, suspend=False), [], 80)
    pods = current(job)
    job = look(look(job, pods, 85), pods, 90)
    attempt = job.status.attempt
    heard = said(26, 101, attempt=attempt, **counted(13 + 11 + 1, 95, (25, 100)))
    starting, training, lost = spent(look(job, pods, 102, heard))
    assert (training, lost) == (13 + 11, 36)
    assert starting > 5 + 10

"""Tests of the trainer's count, which divides running time into training and lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.job.status import goodput as account
from ddp_operator.job.status.progress import Report
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.job.builders import edited, ended, later, ready
from tests.unit.job.status.test_goodput import after_failure, current, goodput, look, trained
from tests.unit.job.status.test_progress import report

POLL_SECONDS = 10
TOLERANCE_SECONDS = 3
"""For each failure: two halves of a step, and whole seconds."""


def said(step: int, at: float, *, attempt: int = 0, **more: Any) -> Report:
    """Return a report about a step that was just completed."""
    time = later(at).isoformat()
    return report(step, received=at, attempt=attempt, lastStepTime=time, **more)


def begun(step: int, at: float) -> dict[str, Any]:
    """Return the trainer's report about the start of its group."""
    return {"resumed": {"step": step, "time": later(at).isoformat()}}


def firsts(*steps: tuple[int, float]) -> dict[str, Any]:
    """Return the trainer's report about the first steps of groups."""
    return {"firstSteps": [{"step": n, "time": later(at).isoformat()} for n, at in steps]}


def counted(seconds: float, formed: float, first: tuple[int, float]) -> dict[str, Any]:
    """Return the report of a trainer that counts its training time."""
    return {**begun(first[0] - 1, formed), **firsts(first), "trainedSeconds": seconds}


def restarted() -> tuple[DDPJob, list[PodState]]:
    """Return a gang that failed in step 121, at second 112, and is ready since 120."""
    job, pods = trained()
    heard = said(120, 111, **counted(98, 12, (1, 13)))
    return after_failure(look(job, pods, 111, heard), 112, 120, heard)


def unheard(scope: str = "Gang") -> tuple[DDPJob, list[PodState]]:
    """Return a job that failed at 112 before its first report, and is ready since 120."""
    job, _ = trained(restart={"scope": scope})
    return after_failure(job, 112, 120)


def spent(job: DDPJob) -> tuple[int, int, int]:
    books = goodput(job)
    return books.starting_seconds, books.training_seconds, books.lost_seconds


def looks(job: DDPJob, at: float, kind: str) -> int:
    """Return the seconds of this kind as they look now."""
    return account.spent(job.status, created=job.created, now=later(at))[kind]


@pytest.mark.parametrize("at", [-500, 0, 111, 112])
def test_time_after_a_failure_looks_lost_until_a_later_step(at: float) -> None:
    job, pods = restarted()
    assert job.status.phase == "Running"
    lost, training = looks(job, 120, "lost"), looks(job, 120, "training")
    stale = said(121, at, attempt=1, **counted(98, 12, (1, 13)))
    job = look(job, pods, 131, replace(stale, received=later(131)))
    assert (looks(job, 131, "lost"), looks(job, 131, "training")) == (lost + 11, training)
    job = look(job, pods, 141, said(112, 140, attempt=1, **counted(88, 130, (101, 131))))
    assert looks(job, 151, "training") == 88 + 11


@pytest.mark.parametrize(
    ("before", "step", "at", "more", "expected"),
    [
        (restarted, 103, 131, counted(80, 125, (101, 129)), (8, 80, 38)),
        (restarted, 119, 131, counted(96, 130, (119, 131)), (8, 96, 22)),
        (restarted, 1, 131, counted(0, 125, (1, 131)), (8, 0, 118)),
        (restarted, 103, 131, counted(1e9, 125, (101, 129)), (8, 118, 0)),
        (restarted, 103, 131, {"trainedSeconds": 5}, (8, 99, 8)),
        (unheard, 31, 131, counted(29, 130, (31, 131)) | firsts((1, 42), (31, 131)), (37, 29, 60)),
        (unheard, 1, 131, counted(0, 130, (1, 131)), (107, 0, 19)),
        (unheard, 31, 131, begun(30, 130), (7, 100, 8)),
        (trained, 10, 60, counted(9, 30, (1, 51)), (46, 9, 0)),
        (trained, 10, 60, begun(0, 30) | firsts((1, 50)), (7, 0, 0)),
    ],
    ids=[
        "checkpoint",
        "memory",
        "nothing was saved",
        "count that is too high changes running time only",
        "count without a group is ignored",
        "unreported group",
        "unreported group without a first step",
        "unreported group of a trainer that does not count",
        "start ends with the first step",
        "start of a trainer that does not count",
    ],
)
def test_report_of_a_group_divides_running_time(
    before: Callable[[], tuple[DDPJob, list[PodState]]],
    step: int,
    at: float,
    more: dict[str, Any],
    expected: tuple[int, int, int],
) -> None:
    job, pods = before()
    heard = said(step, at, attempt=job.status.attempt, **more)
    job = look(job, pods, at, heard)
    assert spent(job) == expected
    assert spent(look(job, pods, at + 5, heard)) == expected, "it is counted once"


def test_restart_by_the_launcher_is_lost_time() -> None:
    job, pods = trained()
    job = look(job, pods, 41, said(10, 40, **counted(9, 15, (1, 31))))
    assert spent(job) == (26, 10, 0)
    # The launcher restarted the ranks after 60; they resume at step 25 of second 55.
    heard = said(35, 100, **counted(24 + 10, 80, (26, 90)))
    assert spent(look(job, pods, 101, heard)) == (26, 35, 35)


@pytest.mark.parametrize("code", [0, 1])
def test_count_in_the_termination_message_is_booked(code: int) -> None:
    job, _ = restarted()
    words = {"step": 130, "lastStepTime": later(150).isoformat(), "trainedSeconds": 78 + 20}
    words |= begun(100, 129)
    over = [ended(job, index, code=code, at=152) for index in range(2)]
    leader = over[0].exit
    assert leader is not None
    over[0] = replace(over[0], exit=replace(leader, message=json.dumps(words)))
    if code:
        job = edited(
            job, restart={"maxRestarts": 0, "rules": [{"exitCodes": [1], "action": "FailJob"}]}
        )
    job = look(job, over, 153)
    after_the_last_step = 0 if code else 3
    assert job.status.finished
    assert spent(job)[1] == 78 + 20 + after_the_last_step


def test_restart_before_the_first_step_is_lost_until_that_step() -> None:
    job, pods = trained()
    job = look(job, [pods[0], ended(job, 1, code=1, at=20)], 20)
    pods = current(job)
    heard = said(10, 50, attempt=1, **counted(9, 40, (1, 41)))
    assert spent(look(look(job, pods, 30), pods, 50, heard)) == (15, 9, 21)


def test_start_after_a_suspension_ends_with_its_first_step() -> None:
    job, pods = restarted()
    job = look(edited(job, suspend=True), pods, 140)
    job = look(edited(job, suspend=False), [], 150)
    starting, attempt = goodput(job).starting_seconds, job.status.attempt
    job = look(job, [ready(job, index) for index in range(2)], 160)
    more = counted(98, 188, (51, 189))
    job = look(job, current(job), 190, said(51, 189, attempt=attempt, **more))
    assert goodput(job).starting_seconds - starting == 29


class Timeline:
    """A training of one step per second, and its operator; times are in seconds."""

    def __init__(self, *, every: int, gang: bool) -> None:
        self.every, self.gang = every, gang
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
            if self.at % POLL_SECONDS == 0 or account.is_down(self.job.status):
                self.hear()

    def hear(self) -> None:
        """Have the operator poll the trainer."""
        status = self.job.status
        identity = Identity(0, status.attempt, status.bookkeeping.replacements.get("0", 0))
        time = later(self.saved[1]).isoformat()
        more = {**self.began_group, "trainedSeconds": self.trained, "firstSteps": []}
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


_failures = st.lists(
    st.tuples(st.integers(0, 90), st.integers(2, 60), st.integers(0, 30)), min_size=1, max_size=15
)


@settings(max_examples=20, deadline=None)
@given(_failures, st.integers(5, 40), st.booleans())
def test_lost_time_is_the_added_duration(
    failures: list[tuple[int, int, int]], every: int, gang: bool
) -> None:
    run = Timeline(every=every, gang=gang)
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
    lost = goodput(run.job).lost_seconds
    assert abs(lost - longer) <= TOLERANCE_SECONDS * len(failures)

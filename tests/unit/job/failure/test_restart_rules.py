"""Tests of `spec.restart.rules`: the first matching rule decides and is named."""

from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.job.failure.records import of_pod
from ddp_operator.job.failure.restart_rules import judge
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import (
    NOW,
    ended,
    event_reasons,
    fresh_job,
    later,
    pod,
    ready,
    running_job,
    stored,
)

IGNORE = {"exitCodes": [42], "ranks": [1], "action": "Ignore"}
RESTART_POD = {"exitCodes": [42], "action": "RestartPod"}


def failure(**fields: Any) -> Failure:
    return Failure.model_validate(
        {
            "time": NOW,
            "attempt": 0,
            "index": 1,
            "rank": 2,
            "pod": "digits-0-1",
            "exit_code": 42,
            "reason": "Error",
            "message": "first line\nCUDA out of memory",
            "class_": "Application",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("matchers", "matches"),
    [
        ({"exitCodes": [1, 42]}, True),
        ({"exitCodes": [1]}, False),
        ({"reasons": ["OOMKilled", "Error"]}, True),
        ({"reasons": ["OOMKilled"]}, False),
        ({"messageRegex": "CUDA out of .emory$"}, True),
        ({"messageRegex": "^CUDA"}, False),
        ({"ranks": [0, 2]}, True),
        ({"ranks": [0, 3]}, False),
        ({"classes": ["Disruption", "Application"]}, True),
        ({"classes": ["Disruption"]}, False),
        ({"exitCodes": [42], "reasons": ["Error"], "ranks": [2]}, True),
        ({"exitCodes": [42], "reasons": ["OOMKilled"], "ranks": [2]}, False),
    ],
)
def test_rule_matches_if_all_its_matchers_match(matchers: dict[str, Any], *, matches: bool) -> None:
    job = fresh_job(nprocPerNode=2, restart={"rules": [{**matchers, "action": "FailJob"}]})
    verdict = judge(job, failure())
    assert verdict.action == ("FailJob" if matches else "RestartGang")
    assert verdict.rule == ("spec.restart.rules[0]" if matches else "")


@pytest.mark.parametrize(
    ("first_pod", "matching"), [(2, {2, 3}), (3, {3})], ids=["equal pods", "unequal pods"]
)
def test_unknown_rank_matches_any_rank_of_its_pod(first_pod: int, matching: set[int]) -> None:
    own = [{"indexes": ["0"], "nprocPerNode": first_pod}]
    processes = 2 if first_pod == 2 else 1
    for rank in range(5):
        rules = [{"ranks": [rank], "action": "FailJob"}]
        job = fresh_job(nprocPerNode=processes, overrides=own, restart={"rules": rules})
        verdict = judge(job, failure(rank=None))
        assert (verdict.action == "FailJob") is (rank in matching)


@pytest.mark.parametrize(("reported", "known"), [(2, None), (3, 3), (4, 4), (5, None)])
def test_reported_rank_must_be_of_its_pod(reported: int, known: int | None) -> None:
    job = fresh_job(nprocPerNode=2, overrides=[{"indexes": ["0"], "nprocPerNode": 3}])
    message = f'{{"rank": {reported}, "error": "loss is nan"}}'
    assert of_pod(job, ended(job, 1, code=1, message=message), NOW).rank == known


def test_failure_without_exit_code_matches_no_exit_code() -> None:
    job = fresh_job(restart={"rules": [{"exitCodes": [1], "action": "FailJob"}]})
    assert judge(job, failure(exit_code=None)).action == "RestartGang"


def test_first_matching_rule_decides() -> None:
    rules = [
        {"exitCodes": [1], "action": "FailJob"},
        RESTART_POD,
        {"exitCodes": [42], "action": "FailJob"},
    ]
    verdict = judge(fresh_job(restart={"rules": rules}), failure())
    assert (verdict.action, verdict.rule) == ("RestartPod", "spec.restart.rules[1]")


@pytest.mark.parametrize(
    ("class_", "scope", "action"),
    [
        ("Application", "Gang", "RestartGang"),
        ("Application", "Pod", "RestartPod"),
        ("Disruption", "Pod", "RestartPod"),
        ("Infrastructure", "Gang", "RestartGang"),
        ("Configuration", "Gang", "FailJob"),
    ],
)
def test_class_and_scope_decide_without_rules(class_: str, scope: str, action: str) -> None:
    verdict = judge(fresh_job(restart={"scope": scope}), failure(class_=class_))
    assert (verdict.action, verdict.charged, verdict.rule) == (action, None, "")


def after_failure(rule: dict[str, Any], *, code: int = 42, **restart: Any) -> tuple[DDPJob, Plan]:
    """Return job and plan after the second of three pods fails, under one rule."""
    job, pods = running_job(replicas=3, restart={"rules": [rule], **restart})
    return job, plan(job, [pods[0], ended(job, 1, code=code), pods[2]], later(60))


class TestActions:
    def test_restart_pod_in_scope_gang(self) -> None:
        _, planned = after_failure(RESTART_POD)
        assert (planned.status.attempt, planned.status.bookkeeping.replacements) == (0, {"1": 1})
        [noted] = planned.status.failures
        assert (noted.action, noted.charged) == ("RestartPod", True)
        assert "(restart 1 of 3, spec.restart.rules[0])" in planned.status.message

    @pytest.mark.parametrize(("code", "scope"), [(42, "Pod"), (64, "Gang")])
    def test_restart_gang_in_scope_pod_or_after_exit_64(self, code: int, scope: str) -> None:
        rule = {"exitCodes": [code], "action": "RestartGang", "charged": True}
        _, planned = after_failure(rule, code=code, scope=scope)
        status = planned.status
        assert (status.attempt, status.restarts, status.bookkeeping.replacements) == (1, 1, {})
        assert status.failures[0].action == "RestartGang"

    def test_fail_job(self) -> None:
        _, planned = after_failure({"exitCodes": [42], "action": "FailJob"})
        assert (planned.status.phase, planned.status.reason) == ("Failed", "FailedByRule")
        assert "spec.restart.rules[0]" in planned.status.message
        assert "digits-0-1" in planned.status.message
        assert (planned.status.restarts, planned.status.failures[0].action) == (0, "FailJob")

    def test_charged_false(self) -> None:
        rule = {"exitCodes": [42], "action": "RestartGang", "charged": False}
        _, planned = after_failure(rule, maxRestarts=0)
        assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
        assert "(not charged, spec.restart.rules[0])" in planned.status.message


class TestIgnore:
    def start(self, **spec: Any) -> tuple[DDPJob, list[PodState]]:
        return running_job(**spec, restart={"rules": [IGNORE]})

    def test_ignored_failure_is_recorded_once_and_restarts_nothing(self) -> None:
        job, pods = self.start()
        seen = [pods[0], ended(job, 1, code=42)]
        planned = plan(job, seen, later(60))
        assert planned.decided
        assert event_reasons(planned) == ["FailureIgnored"]
        assert "spec.restart.rules[0] (Ignore): pod digits-0-1" in planned.events[0].message
        [noted] = planned.status.failures
        assert (noted.action, noted.charged) == ("Ignore", False)
        again = plan(stored(job, planned), seen, later(61))
        assert (again.decided, again.create, again.delete, again.events) == (False, (), (), ())
        assert (again.status.phase, again.status.ready) == ("Running", "2/2")
        assert (again.status.restarts, again.status.disruptions) == (0, 0)

    def test_job_with_ignored_failure_succeeds(self) -> None:
        job, _ = self.start()
        seen = [ended(job, 0, code=0), ended(job, 1, code=42)]
        job = stored(job, plan(job, seen, later(60)))
        planned = plan(job, seen, later(60))
        assert planned.status.phase == "Succeeded"
        assert "(1 failed, ignored by spec.restart.rules)" in planned.status.message

    def test_failure_of_another_rank_still_counts(self) -> None:
        job, _ = self.start()
        seen = [ended(job, 0, code=42), ended(job, 1, code=42)]
        job = stored(job, plan(job, seen, later(60)))
        planned = plan(job, seen, later(60))
        assert (planned.status.attempt, planned.status.restarts) == (1, 1)
        assert [f.action for f in planned.status.failures] == ["Ignore", "RestartGang"]

    def test_vanished_pod_is_created_again(self) -> None:
        """A vanished pod has no exit that could count as a success."""
        rules = [{"reasons": ["Vanished"], "action": "Ignore"}]
        job, pods = running_job(restart={"rules": rules})
        planned = plan(job, [pods[0]], later(60))
        assert (planned.status.attempt, planned.status.disruptions) == (1, 1)

    def test_large_gang_records_a_few_ignored_failures(self) -> None:
        rules = [{"exitCodes": [42], "action": "Ignore"}]
        job, _ = running_job(replicas=20, restart={"rules": rules})
        seen = [ready(job, 0), *(ended(job, index, code=42) for index in range(1, 20))]
        job = stored(job, plan(job, seen, later(60)))
        assert len(job.status.failures) == 5
        assert not plan(job, seen, later(60)).decided

    def test_ignored_failure_of_an_earlier_attempt_is_not_recorded(self) -> None:
        job, _ = self.start()
        old = ended(job, 1, code=42)
        job = stored(job, plan(job, [ended(job, 0, code=1)], later(60)))
        planned = plan(job, [old, pod(job, 0), pod(job, 1)], later(61))
        assert not planned.decided

"""Tests of a job's NetworkPolicy: its rules, and when it is created and deleted."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.constants import OPERATOR_LABELS
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.convergence import report_refusal
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.old_pods import COLLECTION_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.prerequisites import network_policy
from ddp_operator.job.pods.state import Identity, PodState

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import (
    NOW,
    condition,
    does_nothing,
    edited,
    ended,
    fresh_job,
    later,
    ready,
    running_job,
    stored,
    with_status,
)

INSTALL = Path(__file__).parents[4] / "manifests/install"


class TestPolicy:
    def test_policy_admits_the_jobs_pods_and_the_operator(self) -> None:
        job = fresh_job(isolation="Job", statusPort=2345)
        policy = network_policy(job, operator_namespace="operators")
        pod, service = manifests.pod(job, Identity(0, 0)), manifests.service(job)
        own = policy["spec"]["podSelector"]["matchLabels"]
        assert own.items() <= pod["metadata"]["labels"].items()
        assert own == {"ddp-operator.io/job-name": job.name}
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        from_pods, from_operator = policy["spec"]["ingress"]
        assert from_pods == {"from": [{"podSelector": {"matchLabels": own}}]}
        assert from_operator == {
            "from": [
                {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": "operators"}
                    },
                    "podSelector": {"matchLabels": OPERATOR_LABELS},
                }
            ],
            "ports": [{"protocol": "TCP", "port": 2345}],
        }
        outside = network_policy(job, operator_namespace=None)
        assert outside["spec"]["ingress"] == [from_pods]
        for field in ("name", "namespace", "labels", "ownerReferences"):
            assert policy["metadata"][field] == service["metadata"][field]

    @pytest.mark.parametrize(("value", "port"), [("8080", 8080), ("80", 28737), (None, 28737)])
    def test_policy_admits_the_operator_to_the_status_port(
        self, value: str | None, port: int
    ) -> None:
        env = [{"name": "DDP_STATUS_PORT", "value": value}]
        job = fresh_job(template=template(container("logs"), container(env=env)))
        _, operator = network_policy(job, operator_namespace="o")["spec"]["ingress"]
        assert operator["ports"] == [{"protocol": "TCP", "port": port}]

    def test_policy_admits_the_operator_to_ports_of_overrides(self) -> None:
        ports = [{"name": "DDP_STATUS_PORT", "value": "8080"}]
        own = {"indexes": ["1"], "template": template(container(env=ports))}
        job = fresh_job(isolation="Job", overrides=[own])
        _, operator = network_policy(job, operator_namespace="o")["spec"]["ingress"]
        assert [port["port"] for port in operator["ports"]] == [8080, 28737]

    def test_policy_labels_match_the_installed_operator(self) -> None:
        deployment = yaml.safe_load((INSTALL / "deployment.yaml").read_text())
        labels: Json = deployment["spec"]["template"]["metadata"]["labels"]
        assert OPERATOR_LABELS.items() <= labels.items()


def carried_out(
    job: DDPJob, pods: list[PodState], now: datetime, *, isolate: bool
) -> tuple[DDPJob, Plan]:
    """Return the job and the plan after the decision is stored and carried out."""
    decision = plan(job, pods, now)
    assert decision.decided
    changing = with_status(job, isolation="Changing", observed_generation=job.generation)
    assert decision.status == changing.status
    job = stored(job, decision)
    planned = plan(job, pods, now)
    assert (planned.decided, planned.isolate) == (False, isolate)
    assert planned.status.bookkeeping.isolation == ("Job" if isolate else "")
    return stored(job, planned), planned


def test_policy_is_decided_before_the_pods() -> None:
    job = fresh_job(isolation="Job")
    decision = plan(job, [], later(0))
    assert (decision.decided, decision.status.bookkeeping.isolation) == (True, "Changing")
    planned = plan(stored(job, decision), [], later(0))
    assert (planned.isolate, planned.create_service, len(planned.create)) == (True, True, 2)
    assert planned.status.bookkeeping.isolation == "Job"


@pytest.mark.parametrize(
    ("spec", "isolated"),
    [
        ({}, True),
        ({"isolation": "None"}, False),
        ({"template": template(hostNetwork=True)}, False),
        ({"overrides": [{"indexes": ["0"], "template": {"spec": {"hostNetwork": True}}}]}, False),
    ],
)
def test_operators_default_applies_to_jobs_without_isolation(spec: Json, *, isolated: bool) -> None:
    job = fresh_job(replicas=2, **spec)
    decided = plan(job, [], NOW, isolate=True)
    job = replace(job, status=decided.status)
    assert plan(job, [], NOW, isolate=True).isolate is (True if isolated else None)
    assert plan(fresh_job(replicas=2, **spec), [], NOW).status.bookkeeping.isolation == ""


def test_running_job_is_isolated_and_opened_without_restart() -> None:
    job, pods = running_job()
    job, planned = carried_out(edited(job, isolation="Job"), pods, later(20), isolate=True)
    assert does_nothing(replace(planned, isolate=None))
    assert planned.status.phase == "Running"
    again = plan(job, pods, later(21))
    assert (again.decided, again.isolate) == (False, None)
    job, planned = carried_out(edited(job, isolation="None"), pods, later(30), isolate=False)
    assert does_nothing(replace(planned, isolate=None))
    assert planned.status.phase == "Running"
    again = plan(job, pods, later(31))
    assert (again.decided, again.isolate) == (False, None)


@pytest.mark.parametrize(("isolation", "isolate"), [("Job", True), ("None", False)])
def test_change_before_a_crash_follows_the_current_spec(isolation: str, *, isolate: bool) -> None:
    job, pods = running_job()
    job = with_status(edited(job, isolation=isolation), isolation="Changing")
    planned = plan(job, pods, later(20))
    assert (planned.decided, planned.isolate) == (False, isolate)


def test_policy_is_made_again_with_each_attempt() -> None:
    job, pods = running_job()
    job, _ = carried_out(edited(job, isolation="Job"), pods, later(20), isolate=True)
    pods[1] = ended(job, 1, code=1, at=25)
    decision = plan(job, pods, later(30))
    assert (decision.decided, decision.status.bookkeeping.isolation) == (True, "Changing")
    job = stored(job, decision)
    planned = plan(job, [pods[1]], later(31))
    assert (planned.isolate, planned.create_service) == (True, True)
    # Another replica of the operator may find pods that are created and not recorded.
    new = [ready(job, index) for index in range(2)]
    assert plan(job, new, later(32)).isolate
    job = stored(job, planned)
    assert plan(job, new, later(33)).isolate is None


def test_taken_pod_name_makes_one_policy() -> None:
    job = fresh_job(isolation="Job")
    earlier = ready(job, owner_uid="an earlier job's")
    job = stored(job, plan(job, [earlier], later(0)))
    planned = plan(job, [earlier], later(COLLECTION_SECONDS))
    assert (planned.create_service, planned.isolate) == (True, True)
    again = plan(stored(job, planned), [earlier], later(COLLECTION_SECONDS + 5))
    assert (again.create_service, again.isolate) == (True, None)


@pytest.mark.parametrize("suspend", [True, False])
def test_suspended_or_finished_job_gets_no_policy(suspend: bool) -> None:
    job, pods = running_job()
    over = pods if suspend else [ended(job, index, code=0, at=20) for index in range(2)]
    job = stored(job, plan(edited(job, suspend=suspend), over, later(20)))
    assert job.status.finished is not suspend
    planned = plan(edited(job, isolation="Job"), over, later(30))
    assert planned.isolate is None
    assert planned.status.bookkeeping.isolation == ""


def running(planned: Plan) -> Any:
    return condition(planned, "Running"), planned.status.phase, len(planned.events)


def test_refused_policy_does_not_stop_a_running_job() -> None:
    job, pods = running_job()
    job = with_status(edited(job, isolation="Job"), isolation="Changing")
    held = report_refusal(
        job, "NameTaken", "networkpolicies research/digits exists already", later(20)
    )
    assert running(held) == (("True", "NameTaken"), "Running", 1)
    assert held.status.message == "networkpolicies research/digits exists already"
    job = stored(job, held)
    assert running(report_refusal(job, "NameTaken", "it does", later(25))) == (
        ("True", "NameTaken"),
        "Running",
        0,
    )
    assert job.status.bookkeeping.isolation == "Changing"
    # The policy is admitted now.
    assert running(plan(job, pods, later(30))) == (("True", "PodsReady"), "Running", 0)

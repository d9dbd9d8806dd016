"""The example policy refuses what it says, in the template and in overrides."""

from typing import Final

from tests.good_manifests import Json
from tests.unit.kube.admission import AdmissionRequest, Policy
from tests.unit.kube.example_policy import BAD, BINDING, GOOD, POLICY

EXAMPLE: Final = Policy(POLICY)


def request(job: Json, resource: str = "ddpjobs") -> AdmissionRequest:
    return AdmissionRequest("UPDATE", "ddp-operator.io", resource, "somebody", job, None)


def test_jobs_within_the_limits_are_admitted() -> None:
    for name, job in GOOD.items():
        assert EXAMPLE.applies_to(request(job))
        assert EXAMPLE.refusals(request(job)) == [], name


def test_each_job_beyond_a_limit_is_refused_by_one_rule() -> None:
    refused = set()
    for name, job, message in BAD:
        [said] = EXAMPLE.refusals(request(job))
        assert message in said, name
        refused.add(said)
    assert refused == set(EXAMPLE.messages)


def test_scaling_beyond_the_limit_is_refused() -> None:
    for replicas, refusals in ((64, 0), (65, 1)):
        scaled = request(
            {"metadata": {"name": "job"}, "spec": {"replicas": replicas}}, "ddpjobs/scale"
        )
        assert EXAMPLE.applies_to(scaled)
        assert len(EXAMPLE.refusals(scaled)) == refusals


def test_binding_is_of_the_policy() -> None:
    assert BINDING["spec"]["policyName"] == POLICY["metadata"]["name"]
    assert BINDING["spec"]["validationActions"] == ["Deny"]

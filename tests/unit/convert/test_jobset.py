from typing import Any

import pytest

from tests.unit.convert.examples import JOBSET, convert, convert_object, fields, load, spec_of


def jobset(**job: Any) -> dict[str, Any]:
    document = load(JOBSET)
    (replicated,) = document["spec"]["replicatedJobs"]
    replicated["template"]["spec"].update(job)
    return document


def test_the_whole_example() -> None:
    found = convert(JOBSET)
    spec = spec_of(found)
    assert spec["replicas"] == 3
    assert spec["nprocPerNode"] == 2
    assert spec["masterPort"] == 3389
    assert spec["restart"] == {"maxRestarts": 4}
    assert spec["activeDeadlineSeconds"] == 900
    assert spec["ttlSecondsAfterFinished"] == 60
    assert spec["scheduling"] == {"queueName": "cpus"}
    assert spec["template"]["metadata"]["labels"] == {"app": "lines"}
    trainer = spec["template"]["spec"]["containers"][0]
    assert trainer["args"] == ["--host", "$(MASTER_ADDR)"]
    assert trainer["env"] == [
        {"name": "JOB_COMPLETION_INDEX", "value": "$(NODE_RANK)"},
        {"name": "POD", "value": "$(NODE_RANK)"},
    ]
    assert "spec.failurePolicy.rules" in fields(found)
    assert "spec.network.subdomain" in fields(found)


def test_pods_are_replaced_one_by_one_or_all_together() -> None:
    document = jobset(backoffLimit=2)
    del document["spec"]["failurePolicy"]
    assert spec_of(convert_object(document))["restart"] == {"maxRestarts": 2}
    document["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 0
    assert spec_of(convert_object(document))["restart"] == {"maxRestarts": 0}


def test_jobs_of_single_pods_are_one_group() -> None:
    document = jobset(parallelism=1, completions=1)
    document["spec"]["replicatedJobs"][0]["replicas"] = 6
    assert spec_of(convert_object(document))["replicas"] == 6


@pytest.mark.parametrize(
    ("jobs", "operator", "policy"), [(6, "Any", "Rank0"), (6, "All", None), (1, "Any", None)]
)
def test_success_of_any_job_becomes_success_of_rank_0(
    jobs: int, operator: str, policy: str | None
) -> None:
    document = jobset(parallelism=1, completions=1)
    document["spec"]["replicatedJobs"][0]["replicas"] = jobs
    document["spec"]["successPolicy"] = {"operator": operator}
    found = convert_object(document)
    assert spec_of(found).get("successPolicy") == policy
    assert ("spec.successPolicy.operator" in fields(found)) == (policy is not None)


def test_pods_that_run_one_after_the_other_are_no_group() -> None:
    found = convert_object(jobset(completions=9))
    assert found.problem.startswith("spec.replicatedJobs[0].template.spec.completions: 9,")


def test_two_replicated_jobs_are_refused() -> None:
    document = jobset()
    document["spec"]["replicatedJobs"] *= 2
    found = convert_object(document)
    assert found.problem.startswith("spec.replicatedJobs: 2 jobs")

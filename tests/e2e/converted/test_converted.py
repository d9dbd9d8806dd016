"""Jobs that `ddp convert` writes have the ranks, variables and end of the originals.

Originals run under their own controllers, converted jobs in another namespace, all at once. Those
of JobSet and Kubeflow Trainer run by hand: DDP_TEST_PEERS=1 builds the controllers (see
tests/README.md). The training operator of PyTorchJobs is not run: its documentation says what it
tells pods.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_client.convert import of_manifests
from ddp_operator.api.constants import LABEL_JOB_NAME

from tests.e2e.converted import inputs, probe_text
from tests.e2e.converted.inputs import End, Input
from tests.e2e.converted.peers import running_peers
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job
from tests.e2e.kubectl import Kubectl, wait_for

pytestmark = [pytest.mark.timeout(1800)]

ALL_SECONDS = 1200.0
"""For all jobs, which start at once: some fifty processes that import torch, beside other tests."""
WITH_PEERS = bool(os.environ.get("DDP_TEST_PEERS"))
INPUTS = [*inputs.automatic(), *(inputs.of_peers() if WITH_PEERS else ())]


def _first_of_its_kind(one: Input) -> bool:
    return one is next(other for other in INPUTS if other.kind == one.kind)


CASES = [
    pytest.param(one, id=one.name, marks=() if _first_of_its_kind(one) else pytest.mark.nightly)
    for one in INPUTS
]
_SELECTORS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
}


Places = list[tuple[int, int, int, dict[str, str]]]
"""Of each rank that rank 0 has met: rank, local rank, world size, and WANTED's variables."""


@pytest.fixture(scope="module")
def sides(
    environment: Environment, tmp_path_factory: Any, request: pytest.FixtureRequest
) -> Iterator[tuple[Kubectl, Kubectl]]:
    """The namespaces of originals and of converted jobs, with those applied that are tested."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    calls = [test.callspec.params for test in tests if hasattr(test, "callspec")]
    found = [params.get("one") for params in calls]
    chosen = [one for one in found if isinstance(one, Input)]
    with ExitStack() as stack:
        if any(one.kind in ("JobSet", "TrainJob") for one in chosen):
            scratch: Path = tmp_path_factory.mktemp("peers")
            stack.enter_context(running_peers(environment.kubectl, scratch))
        sides = (environment.new_namespace(), environment.new_namespace())
        probe = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "probe"},
            "data": {"probe.py": probe_text()},
        }
        originals = [one for one in chosen if one.kind in _SELECTORS]
        sides[0].apply(probe, *(each for one in originals for each in (*one.others, one.manifest)))
        sides[1].apply(probe, *(_converted(one) for one in chosen))
        yield sides
        for kubectl in sides:
            environment.delete_namespace(kubectl)


def _converted(one: Input) -> Any:
    [found] = of_manifests(yaml.safe_dump_all(inputs.source(one)))
    assert found.manifest is not None, found.problem
    return found.manifest


@pytest.mark.parametrize("one", CASES)
def test_converted_job_has_ranks_environment_and_end_of_the_original(
    sides: tuple[Kubectl, Kubectl], one: Input
) -> None:
    original, converted = sides
    job = Job(converted, one.name)
    job.wait_until(one.end, deadline_seconds=ALL_SECONDS)
    per_pod = len(one.ranks) // len(one.env) if one.env else 1
    told = [each for each in one.env for _ in range(per_pod)] or [{} for _ in one.ranks]
    expected = [
        (rank, local, len(one.ranks), env)
        for (rank, local), env in zip(one.ranks, told, strict=True)
    ]
    assert _places(converted, f"{LABEL_JOB_NAME}={one.name}", one) == expected
    assert job.status().phase == one.end
    if selector := _SELECTORS.get(one.kind):
        assert _places(original, f"{selector}={one.name}", one) == expected
        what = f"{one.kind} {one.name}: {one.end}"
        wait_for(lambda: _end(original, one) == one.end, what=what)


def _places(kubectl: Kubectl, selector: str, one: Input) -> Places:
    """Return what rank 0 has logged; any of the pods may have that rank."""

    def told() -> Places | None:
        pods = kubectl.items("pods", "--selector", selector)
        for pod in pods:
            log = kubectl.attempt("logs", pod["metadata"]["name"]).stdout
            if said := next((x for x in log.splitlines() if x.startswith("PROBE ")), None):
                places = json.loads(said.removeprefix("PROBE "))
                return sorted((p["rank"], p["local"], p["size"], p["env"]) for p in places)
        return None

    return wait_for(told, what=f"the ranks of {one.kind} {one.name} ({selector})")


def _end(kubectl: Kubectl, one: Input) -> End | None:
    status = kubectl.get(one.kind.lower(), one.name).get("status", {})
    ends: dict[str, End] = {"Complete": "Succeeded", "Completed": "Succeeded", "Failed": "Failed"}
    conditions = status.get("conditions", ())
    found = [ends.get(each["type"]) for each in conditions if each["status"] == "True"]
    return next((end for end in found if end), None)

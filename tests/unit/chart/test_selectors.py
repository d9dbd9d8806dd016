"""Objects that select the operator's pods select no pod of a job, whatever its template says."""

from collections.abc import Iterator
from typing import Any

import pytest
from ddp_operator.api.constants import OPERATOR_LABELS
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.prerequisites import network_policy
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import template
from tests.unit.chart.kustomize import build
from tests.unit.chart.rendering import OPERATOR, Json, Objects, render
from tests.unit.job.builders import fresh_job

MONITORS: list[Json] = [
    {"metrics": {"monitor": {"kind": kind}}} for kind in ("PodMonitor", "ServiceMonitor")
]


def selectors(installed: Objects) -> dict[tuple[str, str], Json]:
    """Return the labels by which objects select pods."""
    return {key: labels for key, o in installed.items() for labels in _selected(key[0], o["spec"])}


def _selected(kind: str, spec: Any) -> Iterator[Json]:
    match kind:
        case "Service":
            yield spec["selector"]
        case "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]
        case "Deployment" | "PodDisruptionBudget" | "PodMonitor" | "ServiceMonitor":
            yield spec["selector"]["matchLabels"]


def installations() -> list[Objects]:
    return [build(), *map(render, MONITORS)]


@pytest.mark.parametrize("installed", installations(), ids=("kustomize", "pods", "service"))
def test_pod_of_a_job_with_the_operators_labels_is_not_selected(installed: Objects) -> None:
    operator = installed[OPERATOR]["spec"]["template"]["metadata"]["labels"]
    job = fresh_job(template={**template(), "metadata": {"labels": operator}})
    labels = manifests.pod(job, Identity(0, 0))["metadata"]["labels"]
    found = selectors({key: o for key, o in installed.items() if "spec" in o})
    assert len(found) >= 3
    for key, selected in found.items():
        assert selected.items() <= operator.items(), key
        assert not selected.items() <= labels.items(), key


def test_isolated_pods_admit_no_pod_of_a_job_as_the_operator() -> None:
    job = fresh_job(template={**template(), "metadata": {"labels": OPERATOR_LABELS}})
    _, operator = network_policy(job, operator_namespace="o")["spec"]["ingress"]
    admitted = operator["from"][0]["podSelector"]["matchLabels"]
    labels = manifests.pod(job, Identity(0, 0))["metadata"]["labels"]
    assert not admitted.items() <= labels.items()

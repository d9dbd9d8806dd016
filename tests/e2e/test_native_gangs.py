"""Gangs of Kubernetes' own scheduler with real pods."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.node import Node
from tests.e2e.environment import REPOSITORY, Environment
from tests.e2e.jobs import Job
from tests.e2e.kubectl import Kubectl, Manifest, wait_for
from tests.e2e.lending import (
    LENDER,
    borrower,
    ends_without_a_repeated_step,
    grows_lends_and_grows_again,
    lender,
)
from tests.integration.pod_groups import NATIVE
from tests.integration.queues.queue import CHIP

_RIGHTS = ("--filename", str(REPOSITORY / "manifests/components/gangs/rbac.yaml"))


@pytest.fixture(scope="module")
def node(environment: Environment, running: Cluster) -> Iterator[Node]:
    """A node with the component `gangs`; a test sets how many chips it has."""
    if not isinstance(running, Node):
        pytest.skip("only the capacity of a bare node can be changed")
    kubectl = environment.kubectl
    if kubectl.attempt("get", str(NATIVE)).returncode != 0:
        pytest.skip(f"this server does not offer {NATIVE}: Kubernetes 1.37 does")
    kubectl.run("apply", *_RIGHTS)
    yield running
    kubectl.run("delete", *_RIGHTS)


@pytest.fixture
def urgent(environment: Environment) -> Iterator[str]:
    """The name of a class of a higher priority than the default."""
    name = f"{environment.name}-urgent"
    metadata = {"name": name}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    environment.kubectl.apply({**kind, "metadata": metadata, "value": 1000})
    yield name
    environment.kubectl.run("delete", "priorityclass", name)


def in_gang(manifest: Manifest, **pod: Any) -> Manifest:
    """Return a job as a gang of pods with one chip each; `pod` adds to their spec."""
    job: dict[str, Any] = deepcopy(dict(manifest))
    job["spec"]["scheduling"] = {"gang": "native"}
    spec = job["spec"]["template"]["spec"]
    spec |= pod
    (container,) = spec["containers"]
    container["resources"] = {"limits": {CHIP: 1}}
    return job


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_gang_of_two_to_six_lends_four_pods_and_repeats_no_step(
    environment: Environment, kubectl: Kubectl, node: Node, urgent: str
) -> None:
    node.set_capacity(CHIP, 1)
    kubectl.apply(in_gang(lender(environment, kubectl)))
    job = Job(kubectl, LENDER)
    wait_for(
        lambda: job.status().reason == "Unschedulable",
        what="a gang without room for two pods",
        describe=job.status,
    )
    assert not any("nodeName" in pod["spec"] for pod in job.pods())
    node.set_capacity(CHIP, 2)
    grows_lends_and_grows_again(
        kubectl,
        in_gang(borrower(), priorityClassName=urgent),
        lambda chips: node.set_capacity(CHIP, chips),
    )
    ends_without_a_repeated_step(environment, kubectl)

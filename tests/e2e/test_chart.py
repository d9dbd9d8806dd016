"""Helm where kubectl was before: it takes over what is installed, and a job runs to its end."""

from __future__ import annotations

import helm_python as helm

from tests.chart import readme
from tests.e2e.environment import OPERATOR_NAMESPACE, REPOSITORY, Environment, operator_pods
from tools.chart.generated import CHART

RELEASE = "ddp-operator"


def test_helm_takes_over_without_a_new_pod_and_runs_a_job_to_its_end(
    environment: Environment,
) -> None:
    kubectl = environment.kubectl
    before = {pod["metadata"]["uid"] for pod in operator_pods(kubectl)}
    for words in readme.take_over():
        kubectl.run(
            *(str(REPOSITORY / word) if word == "manifests/install" else word for word in words)
        )
    with helm.Config(kubeconfig_path=kubectl.kubeconfig, namespace=OPERATOR_NAMESPACE) as config:
        config.install(CHART, RELEASE)
        config.test(RELEASE)

    assert {pod["metadata"]["uid"] for pod in operator_pods(kubectl)} == before

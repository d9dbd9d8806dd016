"""Helm where kubectl was before: it takes over what is installed, and a job runs to its end."""

from __future__ import annotations

import helm_python as helm

from tests.chart.generated import CHART
from tests.e2e.environment import OPERATOR_NAMESPACE, REPOSITORY, Environment, operator_pods

RELEASE = "ddp-operator"


def test_helm_takes_over_without_a_new_pod_and_runs_a_job_to_its_end(
    environment: Environment,
) -> None:
    kubectl = environment.kubectl
    before = {pod["metadata"]["uid"] for pod in operator_pods(kubectl)}
    # Helm's way to say that an object is a release's; what this server does not know is left out.
    installed = kubectl.run("kustomize", str(REPOSITORY / "manifests/install"))
    installed = "\n---\n".join(
        text for text in installed.split("\n---\n") if "kind: PodDisruptionBudget\n" not in text
    )
    kubectl.run(
        "label", "--filename=-", "app.kubernetes.io/managed-by=Helm", "--overwrite", stdin=installed
    )
    kubectl.run(
        *("annotate", "--filename=-", "--overwrite"),
        f"meta.helm.sh/release-name={RELEASE}",
        f"meta.helm.sh/release-namespace={OPERATOR_NAMESPACE}",
        stdin=installed,
    )

    with helm.Config(kubeconfig_path=kubectl.kubeconfig, namespace=OPERATOR_NAMESPACE) as config:
        config.install(CHART, RELEASE, {"crds": {"enabled": False}})
        config.test(RELEASE)

    assert {pod["metadata"]["uid"] for pod in operator_pods(kubectl)} == before

"""The NetworkPolicy of a job with `spec.isolation: Job`."""

from typing import Any

from ddp_operator.api.constants import LABEL_JOB_NAME, NAMESPACE_NAME_LABEL, OPERATOR_LABELS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.job.pods.address import told_port
from ddp_operator.job.pods.manifests import own_metadata


def network_policy(job: DDPJob, *, operator_namespace: str | None) -> dict[str, Any]:
    """Return the policy: the job's own pods and the operator may connect, and all egress is
    allowed.

    It spells out the API server's defaults, so that the stored object equals this one.
    `operator_namespace` is None if the operator runs in no pod.
    """
    own_pods = {LABEL_JOB_NAME: job.name}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": {"matchLabels": own_pods}}]}]
    if operator_namespace is not None:
        operator = {
            "namespaceSelector": {"matchLabels": {NAMESPACE_NAME_LABEL: operator_namespace}},
            "podSelector": {"matchLabels": OPERATOR_LABELS},
        }
        told = {told_port(trainer_container(kind.template)) for kind, _ in kinds(job.spec)}
        ports = sorted({port or job.spec.status_port for port in told})
        asked = [{"protocol": "TCP", "port": port} for port in ports]
        ingress.append({"from": [operator], "ports": asked})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": own_metadata(job),
        "spec": {
            "podSelector": {"matchLabels": own_pods},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }

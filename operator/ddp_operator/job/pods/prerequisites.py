"""Objects that a job needs before its pods, besides its Service."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_NAME, NAMESPACE_NAME_LABEL, OPERATOR_LABELS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec.overrides import accelerators, kinds
from ddp_operator.job.pods.address import told_port
from ddp_operator.job.pods.fabrics.rdma import CLAIMED
from ddp_operator.job.pods.manifests import own_metadata
from ddp_operator.job.pods.schedulers.gangs import gang_of
from ddp_operator.ports import Manifest

_CLAIMS_NEED: Final = (
    "spec.accelerator.network: dranet needs Kubernetes 1.34 or later, and an operator that may "
    "create claim templates (manifests/components/dranet)"
)


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """An object of a kind that the cluster may lack, or that the operator may not create."""

    manifest: Manifest
    needs: str
    """The field that asks for it and what that requires, for the message when the server refuses
    it."""


def prerequisites(job: DDPJob) -> Iterator[Prerequisite]:
    """Yield the objects that must exist before the job's pods. The job owns them."""
    if template := claim_template(job):
        yield Prerequisite(template, _CLAIMS_NEED)
    if gang := gang_of(job):
        group = gang.group(job)
        metadata = {**own_metadata(job), **group.get("metadata", {})}
        yield Prerequisite({**group, "metadata": metadata}, gang.needs)


def claim_template(job: DDPJob) -> dict[str, Any] | None:
    """Return the ResourceClaimTemplate of a job's pods; None if they claim nothing."""
    if all(one.fabric != "dranet" for one in accelerators(job.spec)):
        return None
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": own_metadata(job),
        "spec": {"spec": CLAIMED},
    }


def network_policy(job: DDPJob, *, operator_namespace: str | None) -> dict[str, Any]:
    """Return the policy of `spec.isolation: Job`: only the job's own pods and the operator may
    connect. Egress is allowed.

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

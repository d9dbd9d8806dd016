"""Objects that a job needs before its pods, besides its Service."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import (
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    NAMESPACE_NAME_LABEL,
    OPERATOR_LABELS,
)
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec.overrides import accelerators, kinds
from ddp_operator.job.pods.address import told_port
from ddp_operator.job.pods.fabrics.rdma import (
    cards_of,
    cards_template,
    channel_template,
    claimed,
)
from ddp_operator.job.pods.manifests import own_metadata
from ddp_operator.job.pods.schedulers.gangs import gang_of
from ddp_operator.ports import Manifest

_CLAIMS_NEED: Final = (
    "spec.accelerator.network: dranet needs Kubernetes 1.34 or later, and an operator that may "
    "create claim templates (manifests/components/dranet)"
)
_DOMAINS_NEED: Final = (
    "spec.accelerator.network: NVLink domains need NVIDIA's DRA driver, and an operator that may "
    "create ComputeDomains (manifests/components/compute-domains)"
)

COMPUTE_DOMAIN: Final[Manifest] = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
}
"""From api/nvidia.com/resource/v1beta1 of
https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu (August 2026)."""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """An object of a kind that the cluster may lack, or that the operator may not create."""

    manifest: Manifest
    needs: str
    """The field that asks for it and what that requires, for the message when the server refuses
    it."""


def prerequisites(job: DDPJob) -> Iterator[Prerequisite]:
    """Yield the objects that must exist before the job's pods. The job owns them, except a
    ComputeDomain.
    """
    if domain := compute_domain(job):
        yield Prerequisite(domain, _DOMAINS_NEED)
    for template in claim_templates(job):
        yield Prerequisite(template, _CLAIMS_NEED)
    if gang := gang_of(job):
        group = gang.group(job)
        metadata = {**own_metadata(job), **group.get("metadata", {})}
        yield Prerequisite({**group, "metadata": metadata}, gang.needs)


def claim_templates(job: DDPJob) -> Iterator[dict[str, Any]]:
    """Yield a ResourceClaimTemplate for each number of network cards that pods claim."""
    claiming = (one for one in accelerators(job.spec) if one.fabric == "dranet")
    for cards in dict.fromkeys(cards_of(one.gpu) for one in claiming):
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {**own_metadata(job), "name": cards_template(job.name, cards)},
            "spec": {"spec": claimed(cards)},
        }


def compute_domain(job: DDPJob) -> dict[str, Any] | None:
    """Return the ComputeDomain of a job's pods; None if they need none.

    It has no owner. NVIDIA's driver cuts the NVLink connections of all pods as soon as the domain's
    deletion is requested, even if a finalizer holds it. Kubernetes would request it together with
    that of the job's pods, which may still save. `engine.background.compute_domains` deletes it
    after them, and a namespace that ends deletes its pods first (since Kubernetes 1.34:
    https://kep.k8s.io/5080).
    """
    if not any(one.domain_nodes for one in accelerators(job.spec)):
        return None
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid},
    }
    channel = {"resourceClaimTemplate": {"name": channel_template(job.name)}}
    nodes = job.spec.max_size + job.spec.spares
    return {**COMPUTE_DOMAIN, "metadata": metadata, "spec": {"numNodes": nodes, "channel": channel}}


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

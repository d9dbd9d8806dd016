"""What a job's pods claim of their nodes' devices."""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.api.overrides import kinds
from ddp_operator.job.pods.fabrics.dranet import CLAIMED
from ddp_operator.job.pods.manifests import owner_reference

CLAIMS_NEED: Final = (
    "spec.accelerator.network: dranet needs Kubernetes 1.34 or later, and an operator that may "
    "make claim templates (manifests/components/dranet)"
)


def claim_template(job: DDPJob) -> dict[str, Any] | None:
    """The ResourceClaimTemplate of a job's pods, by its own name; None where they claim nothing."""
    accelerators = (kind.accelerator for kind, _ in kinds(job.spec))
    if all(one is None or one.fabric != "dranet" for one in accelerators):
        return None
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {LABEL_JOB_NAME: job.name},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {"spec": CLAIMED},
    }

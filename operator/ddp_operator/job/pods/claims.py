"""What a job's pods claim of their nodes' devices."""

from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.overrides import kinds
from ddp_operator.job.pods.fabrics.dranet import CLAIMED
from ddp_operator.job.pods.manifests import own_metadata

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
        "metadata": own_metadata(job),
        "spec": {"spec": CLAIMED},
    }

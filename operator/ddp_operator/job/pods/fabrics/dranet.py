"""RDMA with DRANET: the pod claims its node's network cards and names no interfaces.

Based on gpudirect-rdma/nccl-test-managed-rdma.yaml of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026).
"""

from typing import Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.job.pods.fabrics import edits
from ddp_operator.job.pods.fabrics.rdma import give_gib
from ddp_operator.job.pods.fabrics.side_cars import SideCars
from ddp_operator.ports import Manifest

_CLAIM: Final = "ddp-rdma"

CLAIMED: Final[Manifest] = {
    "devices": {
        "requests": [
            {
                "name": "rdma",
                "exactly": {
                    "deviceClassName": "mrdma.google.com",
                    "allocationMode": "ExactCount",
                    "count": 8,
                },
            }
        ]
    }
}
"""All RDMA cards of a machine."""


def dranet(draft: edits.Draft, trainer: str, side_cars: SideCars) -> None:
    """Give the pod RDMA through a claim. The job's claim template has the job's name."""
    del side_cars  # it has none
    template = draft["metadata"]["labels"][LABEL_JOB_NAME]
    edits.claim(draft, trainer, _CLAIM, template=template)
    give_gib(draft, trainer)

"""GPUDirect-RDMA over RoCE with Google's plugin gIB: a3-ultragpu-8g and a4-highgpu-8g.

The pod names its node's network cards (`rdma`), or claims them through DRANET (`dranet`).

Based on gpudirect-rdma/nccl-test.yaml, nccl-test-a4.yaml and nccl-test-managed-rdma.yaml of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026). There
the image's entry script sets the path of gIB's libraries; here LD_LIBRARY_PATH does.
"""

from typing import Final

from ddp_operator.api.constants import (
    ENV_NCCL_SCRIPT,
    GKE_NETWORK_PROFILE_LABEL,
    LABEL_JOB_NAME,
)
from ddp_operator.job.pods.fabrics import edits
from ddp_operator.ports import Manifest

_NETWORKS: Final = tuple((f"eth{n + 2}", f"rdma-{n}") for n in range(8))
"""eth1 is the node's second ordinary card."""
_GIB: Final = "/usr/local/gib"

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


def rdma(draft: edits.Draft, trainer: str) -> None:
    """Give the pod RDMA through interfaces of its own."""
    edits.give_interfaces(draft, _NETWORKS)
    _give_gib(draft, trainer)
    # GKE gives the cards' device files to a pod's first container, and to no other:
    # https://docs.cloud.google.com/ai-hypercomputer/docs/create/gke-ai-hypercompute-custom
    draft["spec"]["containers"].sort(key=lambda container: container.get("name") != trainer)


def dranet(draft: edits.Draft, trainer: str) -> None:
    """Give the pod RDMA through a claim. The job's claim template has the job's name."""
    # A pod on such nodes must select them, says Google's page on A4X Max. Without the label the
    # autoscaler does not know that a pool without nodes has the cards.
    edits.select(draft, GKE_NETWORK_PROFILE_LABEL, "auto")
    template = draft["metadata"]["labels"][LABEL_JOB_NAME]
    edits.claim(draft, trainer, "ddp-rdma", template=template)
    _give_gib(draft, trainer)


def _give_gib(draft: edits.Draft, trainer: str) -> None:
    """Give the trainer NVIDIA's and gIB's libraries, which an installer puts on nodes."""
    edits.add_host_path(draft, "ddp-nvidia", "/home/kubernetes/bin/nvidia", kind="Directory")
    edits.add_host_path(draft, "ddp-gib", "/home/kubernetes/bin/gib", kind="Directory")
    trains = edits.container(draft, trainer)
    # Read-only, as in Google's manifests for Autopilot.
    edits.mount(trains, "ddp-nvidia", "/usr/local/nvidia", read_only=True)
    edits.mount(trains, "ddp-gib", _GIB, read_only=True)
    edits.set_variables(trains, **{ENV_NCCL_SCRIPT: f"{_GIB}/scripts/set_nccl_env.sh"})
    edits.find_libraries(trains, f"{_GIB}/lib64", edits.LIBRARIES)

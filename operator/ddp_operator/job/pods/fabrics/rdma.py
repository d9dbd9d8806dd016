"""GPUDirect-RDMA over RoCE with Google's plugin gIB: a3-ultragpu-8g, a4-highgpu-8g, A4X, A4X Max.

The pod names its node's network cards (`rdma`), or claims them through DRANET (`dranet`). On A4X
and A4X Max it also claims a channel of its job's ComputeDomain, by which GPUs of different nodes
reach each other over NVLink.

Based on gpudirect-rdma/nccl-test.yaml, nccl-test-a4.yaml, nccl-test-managed-rdma.yaml,
nccl-test-imex-a4x.yaml and nccl-test-a4x-max.yaml of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026). There
the image's entry script sets the path of gIB's libraries; here LD_LIBRARY_PATH does.
"""

from typing import Any, Final

from ddp_operator.api.constants import (
    ENV_NCCL_SCRIPT,
    GKE_NETWORK_PROFILE_LABEL,
    LABEL_JOB_NAME,
)
from ddp_operator.api.gpus import Gpu
from ddp_operator.job.pods.fabrics import edits

_GIB: Final = "/usr/local/gib"

_ALL_CARDS: Final = 8
"""RDMA cards of machines that the table does not name."""


def claimed(cards: int = _ALL_CARDS) -> dict[str, Any]:
    """Return the devices of a claim: all RDMA cards of a machine."""
    request = {
        "deviceClassName": "mrdma.google.com",
        "allocationMode": "ExactCount",
        "count": cards,
    }
    return {"devices": {"requests": [{"name": "rdma", "exactly": request}]}}


def cards_of(gpu: Gpu | None) -> int:
    """Return how many RDMA cards a machine has; None: the machine is unknown."""
    return gpu.network_cards if gpu else _ALL_CARDS


def cards_template(job: str, cards: int) -> str:
    """Return the name of the claim template for so many cards: a template never changes, and a
    suspended job may change its machines.
    """
    return job if cards == _ALL_CARDS else f"{job}-rdma-{cards}"


def channel_template(job: str) -> str:
    """Return the name of the claim template that NVIDIA's driver creates for a ComputeDomain."""
    return f"{job}-channel"


def rdma(draft: edits.Draft, trainer: str, gpu: Gpu | None) -> None:
    """Give the pod RDMA through interfaces of its own, and on A4X a channel."""
    # eth1 is the node's second ordinary card.
    networks = [(f"eth{n + 2}", f"rdma-{n}") for n in range(cards_of(gpu))]
    edits.give_interfaces(draft, networks)
    _claim_channel(draft, trainer, gpu)
    _give_gib(draft, trainer)
    # GKE gives the cards' device files to a pod's first container, and to no other:
    # https://docs.cloud.google.com/ai-hypercomputer/docs/create/gke-ai-hypercompute-custom
    draft["spec"]["containers"].sort(key=lambda container: container.get("name") != trainer)


def dranet(draft: edits.Draft, trainer: str, gpu: Gpu | None) -> None:
    """Give the pod RDMA through a claim, and on A4X and A4X Max a channel."""
    # A pod on such nodes must select them, says Google's page on A4X Max. Without the label the
    # autoscaler does not know that a pool without nodes has the cards.
    edits.select(draft, GKE_NETWORK_PROFILE_LABEL, "auto")
    job = draft["metadata"]["labels"][LABEL_JOB_NAME]
    edits.claim(draft, trainer, "ddp-rdma", template=cards_template(job, cards_of(gpu)))
    _claim_channel(draft, trainer, gpu)
    if gpu is None or gpu.gib_on_node:
        _give_gib(draft, trainer)
    else:
        _give_nvidia(draft, trainer)
        trains = edits.container(draft, trainer)
        edits.find_libraries(trains, f"{_GIB}/lib64", edits.LIBRARIES)
        edits.allow(trains, "IPC_LOCK")


def _claim_channel(draft: edits.Draft, trainer: str, gpu: Gpu | None) -> None:
    """Claim a channel of the job's ComputeDomain on machines that share an NVLink domain."""
    if gpu and gpu.domain_nodes:
        job = draft["metadata"]["labels"][LABEL_JOB_NAME]
        edits.claim(draft, trainer, "ddp-channel", template=channel_template(job))


def _give_nvidia(draft: edits.Draft, trainer: str) -> None:
    """Give the trainer NVIDIA's libraries, which an installer puts on nodes."""
    edits.add_host_path(draft, "ddp-nvidia", "/home/kubernetes/bin/nvidia", kind="Directory")
    # Read-only, as in Google's manifests for Autopilot.
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-nvidia", "/usr/local/nvidia", read_only=True)


def _give_gib(draft: edits.Draft, trainer: str) -> None:
    """Give the trainer NVIDIA's and gIB's libraries of its node."""
    _give_nvidia(draft, trainer)
    edits.add_host_path(draft, "ddp-gib", "/home/kubernetes/bin/gib", kind="Directory")
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-gib", _GIB, read_only=True)
    edits.set_variables(trains, **{ENV_NCCL_SCRIPT: f"{_GIB}/scripts/set_nccl_env.sh"})
    edits.find_libraries(trains, f"{_GIB}/lib64", edits.LIBRARIES)

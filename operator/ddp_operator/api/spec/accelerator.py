"""`DDPJob.spec.accelerator`: GPU nodes on GKE."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.constants import MAX_GPUS, MAX_RUN_SECONDS
from ddp_operator.api.gpus import GPUS, Fabric, Gpu
from ddp_operator.api.spec.base import ApiModel

_Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
"""A name in Compute Engine or GKE; it fits into a label."""


class Reservation(ApiModel):
    """Capacity that was reserved in advance."""

    name: _Name = Field(description="Name of the reservation.")
    project: _Name | None = Field(
        default=None,
        description="Project that shares the reservation. Default: the cluster's own project.",
    )
    blocks: _Name | None = Field(default=None, description="Name of a block of the reservation.")
    sub_blocks: _Name | None = Field(default=None, description="Name of a sub-block of the block.")


class Accelerator(ApiModel):
    """GPU nodes on GKE: node selector, GPU limit and toleration for every pod."""

    type: (
        Annotated[
            str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "Value of GKE's node label cloud.google.com/gke-accelerator, such as nvidia-l4 or "
            "nvidia-h100-80gb."
        ),
    )
    compute_class: _Name | None = Field(
        default=None,
        description=(
            "A GKE ComputeClass, which chooses the machines instead of type and provisioning."
        ),
    )
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(
        default=1,
        description=(
            "GPUs of each pod. Becomes the trainer container's nvidia.com/gpu limit if the "
            "template has none."
        ),
    )
    provisioning: Literal["standard", "spot", "flex-start", "queued", "reservation"] = Field(
        default="standard",
        description=(
            "How the nodes are bought on GKE. queued: all at once, through a ProvisioningRequest "
            "that Kueue creates for scheduling.queueName."
        ),
    )
    max_run_seconds: Annotated[int, Field(ge=30, le=MAX_RUN_SECONDS)] | None = Field(
        default=None,
        description=(
            "Asks for nodes that GKE removes this many seconds after it has created them. "
            "flex-start and queued allow 600 to 604800; GKE's default for them is 604800."
        ),
    )
    reservation: Reservation | None = Field(
        default=None, description="The reservation to use. Needs provisioning: reservation."
    )
    network: Literal["none", "auto", "tcpx", "tcpxo", "rdma", "dranet"] = Field(
        default="none",
        description=(
            "GPU network between nodes that bypasses their CPUs. auto: what machines of this type "
            "have, with nvidia-gb200 and nvidia-gb300 also an NVLink domain. Pods get what the "
            "network needs: interfaces, a sidecar, host paths, devices, capabilities, NCCL "
            "settings. This takes permissions that a namespace may forbid."
        ),
    )

    @property
    def gpu(self) -> Gpu | None:
        """The table's entry for the GPU type, or None for an unknown type."""
        return GPUS.get(self.type or "")

    @property
    def fabric(self) -> Fabric | None:
        """The GPU network to use, or None for the pods' ordinary network."""
        if self.network == "auto":
            return self.gpu.fabric if self.gpu else None
        return None if self.network == "none" else self.network

    @property
    def domain_nodes(self) -> int:
        """Nodes of the NVLink domain in which all pods are; 0: they need not share one."""
        return self.gpu.domain_nodes if self.gpu and self.fabric else 0

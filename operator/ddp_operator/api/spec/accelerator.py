"""`DDPJob.spec.accelerator`: which GPU nodes on GKE."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ddp_operator.api.constants import MAX_GPUS, MAX_RUN_SECONDS
from ddp_operator.api.gpus import GPUS, Fabric, Gpu
from ddp_operator.api.spec.base import ApiModel

_Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
"""As Compute Engine and GKE name things; fits into a label."""


class Reservation(ApiModel):
    """Capacity that was bought beforehand."""

    name: _Name = Field(description="Name of the reservation.")
    project: _Name | None = Field(
        default=None, description="Project that shares it, where it is another one's."
    )
    blocks: _Name | None = Field(default=None, description="Name of a block of it.")
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
            "Value of GKE's node label cloud.google.com/gke-accelerator, "
            "such as nvidia-l4 or nvidia-h100-80gb."
        ),
    )
    compute_class: _Name | None = Field(
        default=None,
        description=(
            "A GKE ComputeClass, which chooses the machines, in place of type and provisioning."
        ),
    )
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(
        default=1,
        description=(
            "GPUs of each pod: becomes the trainer container's nvidia.com/gpu limit "
            "where the template gives none."
        ),
    )
    provisioning: Literal["standard", "spot", "flex-start", "queued", "reservation"] = Field(
        default="standard",
        description=(
            "How the nodes are bought on GKE. queued: all at once, by a ProvisioningRequest that "
            "Kueue makes for scheduling.queueName."
        ),
    )
    max_run_seconds: Annotated[int, Field(ge=30, le=MAX_RUN_SECONDS)] | None = Field(
        default=None,
        description=(
            "Asks for nodes that GKE takes back so long after it has made them. flex-start and "
            "queued: 600 to 604800; absent, GKE takes 604800."
        ),
    )
    reservation: Reservation | None = Field(
        default=None, description="Where they come from, with provisioning: reservation."
    )
    network: Literal["none", "auto", "tcpx", "tcpxo", "rdma", "dranet"] = Field(
        default="none",
        description=(
            "What joins GPUs of different nodes past the nodes' CPUs; auto: what machines of the "
            "type have. Pods get what it needs: interfaces, a side car, host paths, devices, "
            "capabilities, NCCL's settings. That takes rights that a namespace may forbid."
        ),
    )
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)
    ] = Field(default_factory=dict, description="Further node labels to ask for; merged last.")
    tolerations: Annotated[list[dict[str, Any]], Field(max_length=32)] = Field(
        default_factory=list, description="Further tolerations, as in a pod; merged last."
    )

    @property
    def gpu(self) -> Gpu | None:
        """What is known of the type; None: nothing."""
        return GPUS.get(self.type or "")

    @property
    def fabric(self) -> Fabric | None:
        """The network that is meant; None: the pods' ordinary one."""
        if self.network == "auto":
            return self.gpu.fabric if self.gpu else None
        return None if self.network == "none" else self.network

"""`DDPJob.spec.checkpoint` and `memoryCheckpoint`: where a training's state is kept."""

from math import ceil
from typing import Annotated

from ddp_protocol.world import MAX_COPIES
from pydantic import Field

from ddp_operator.api.spec.base import ApiModel, ResourceName
from ddp_operator.api.values.quantities import Memory, quantity

# https://cloud.google.com/storage/docs/buckets#naming
BucketName = Annotated[
    str, Field(min_length=3, max_length=222, pattern=r"^[a-z0-9][-a-z0-9_.]*[a-z0-9]$")
]
AbsolutePath = Annotated[str, Field(max_length=1024, pattern=r"^/.*$")]


class Checkpoint(ApiModel):
    """Where training state is kept. Without a location it is an emptyDir: each pod has its own, and
    it is deleted with the pod. Once rank 0 has saved to one, a failure restarts all pods.
    """

    path: AbsolutePath = Field(
        default="/checkpoints",
        description=(
            "Where the volume is mounted in every pod; also in the environment as "
            "DDP_CHECKPOINT_DIR."
        ),
    )
    persistent_volume_claim: ResourceName | None = Field(
        default=None,
        description=(
            "Name of a PersistentVolumeClaim in the job's namespace. Its access mode must allow "
            "all pods."
        ),
    )
    gcs_bucket: BucketName | None = Field(
        default=None, description="Bucket to mount through GKE's Cloud Storage FUSE CSI driver."
    )
    host_path: AbsolutePath | None = Field(
        default=None, description="Directory on the node, for single-node and test clusters."
    )


class MemoryCheckpoint(ApiModel):
    """Snapshots that the script saves with `ddp_trainer.memory.save`: how much memory they may use,
    and how many lost pods they survive.
    """

    size_limit: Memory = Field(
        description=(
            "Memory of each pod for snapshots, such as 64Gi: 2 x (1 + copies) x the state of the "
            "pod's ranks. It counts towards the memory limit of the trainer container."
        )
    )
    copies: Annotated[int, Field(ge=0, le=MAX_COPIES)] = Field(
        default=1,
        description=(
            "How many other pods keep a copy of each pod's snapshots, and so how many pods may be "
            "lost at once. 0: snapshots survive only the loss of processes."
        ),
    )

    @property
    def size_bytes(self) -> int:
        """The size limit in bytes, rounded up as Kubernetes does."""
        return ceil(quantity(self.size_limit) or 0)

"""`DDPJob.spec.memoryCheckpoint`: snapshots of the ranks' states in the memory of the pods."""

from math import ceil
from typing import Annotated

from pydantic import Field

from ddp_operator.api.constants import MAX_COPIES
from ddp_operator.api.spec.base import ApiModel
from ddp_operator.api.values.quantities import Memory, quantity


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

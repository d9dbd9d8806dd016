"""`DDPJob.status.world`: members of a job's group."""

from typing import Annotated, Final

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.values.bounded import Count, StatusModel, Time, first

_SLOTS: Final = 6 * MAX_REPLICAS
"""Characters that name each pod of the largest group one by one."""


class World(StatusModel):
    """Members of the job's group. The operator writes this before any pod receives it."""

    generation: Count = Field(
        default=0, description="Number of changes of the group. Pods never return to a lower one."
    )
    members: Annotated[str, first(_SLOTS)] = Field(
        default="",
        description=(
            "Pods of the group, by the number in their names, in the order of their node ranks."
        ),
    )
    changed_at: Annotated[Time | None, Field(description="When this was decided.")] = None

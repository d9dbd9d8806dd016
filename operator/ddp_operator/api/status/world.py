"""`status.world`: who is in the group of a job."""

from typing import Annotated, Final

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.values.bounded import Count, StatusModel, Time, first

_SLOTS: Final = 6 * MAX_REPLICAS
"""Characters that name every pod of the largest group by itself."""


class World(StatusModel):
    """Who is in the job's group; written before any pod is told of it."""

    generation: Count = Field(
        default=0, description="Counts changes of the group; pods never go back to a lower one."
    )
    size: Count = Field(default=0, description="Pods in the group.")
    members: Annotated[str, first(_SLOTS)] = Field(
        default="",
        description="Which pods, by the number in their names, in the order of their node ranks.",
    )
    lost: Count = Field(default=0, description="Pods of the generation before that were lost.")
    grace_seconds: Count = Field(
        default=0, description="What the processes of the generation before get to end."
    )
    changed_at: Annotated[Time | None, Field(description="When this was decided.")] = None

"""`DDPJob.spec.elastic`: between which sizes a job's group may change while it trains."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.spec.base import ApiModel

_Pods = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
_Patience = Annotated[int, Field(ge=0, le=24 * 3600)]


class Elastic(ApiModel):
    """How far the group may shrink and grow, and how soon.

    With it `spec.replicas` may be changed while the job runs, as by kubectl scale.
    """

    min_replicas: _Pods | None = Field(
        default=None,
        description=(
            "Training goes on with so many pods while others are missing. Absent: never with fewer "
            "than replicas."
        ),
    )
    max_replicas: _Pods | None = Field(
        default=None,
        description=(
            "Pods are asked for up to so many, and join the others when they have got nodes. "
            "Absent: replicas."
        ),
    )
    shrink_after_seconds: _Patience = Field(
        default=30,
        description=(
            "How long missing pods are waited for before the others go on without, where fewer "
            "than replicas would be left; 30 s at least as the group begins. Pods that announce "
            "their end are not waited for."
        ),
    )
    grow_after_seconds: _Patience = Field(
        default=120,
        description=(
            "How long after one change of the group pods that are ready may join it; those that "
            "are ready at the same time join together."
        ),
    )
    batch: Literal["global", "perRank"] = Field(
        default="global",
        description=(
            "What stays the same when the size changes, with the bundled trainer and scripts that "
            "use ddp_trainer.join. global: the samples of a step, of which ranks take larger or "
            "smaller shares. perRank: each rank's batch. Immutable once a pod has "
            "run, except while suspended."
        ),
    )

"""`DDPJob.spec.elastic`: how far a job's group may change its size while it trains."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.spec.base import ApiModel

_Pods = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
_Patience = Annotated[int, Field(ge=0, le=24 * 3600)]


class Elastic(ApiModel):
    """How far the group may shrink and grow, and how soon.

    With it `spec.replicas` may be changed while the job runs, for example with kubectl scale.
    """

    min_replicas: _Pods | None = Field(
        default=None,
        description=(
            "Training continues with this many pods or more while others are missing. Default: "
            "replicas, so that training never continues with fewer."
        ),
    )
    max_replicas: _Pods | None = Field(
        default=None,
        description=(
            "The job asks for up to this many pods. Additional pods join when they have nodes. "
            "Default: replicas."
        ),
    )
    shrink_after_seconds: _Patience = Field(
        default=30,
        description=(
            "How long to wait for missing pods before training continues with fewer than replicas, "
            "in seconds; at least 30 when the group first forms. Pods that announce their end are "
            "not waited for."
        ),
    )
    grow_after_seconds: _Patience = Field(
        default=120,
        description=(
            "How long after a change of the group ready pods may join it, in seconds. Pods that "
            "are ready at the same time join together."
        ),
    )
    batch: Literal["global", "perRank"] = Field(
        default="global",
        description=(
            "What stays the same when the size changes, with the bundled trainer and scripts that "
            "use ddp_trainer.join. global: the samples of a step; ranks take larger or smaller "
            "shares. perRank: each rank's batch. Immutable once a pod has run, except while "
            "suspended."
        ),
    )

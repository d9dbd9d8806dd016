"""`DDPJob.spec.scheduling`: who decides when a job's pods get their nodes."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.api.spec.base import ApiModel

_QueueName = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""An object's name that fits into a label."""


class Topology(ApiModel):
    """How close to each other the pods are placed."""

    level: Literal["block", "sub-block", "host"] = Field(
        description=(
            "What the pods share: a block, a sub-block or a host, by GKE's node labels "
            "gce-topology-block, gce-topology-subblock and gce-topology-host."
        )
    )
    required: bool = Field(
        default=False,
        description=(
            "true: pods wait until they can be placed together. false: they are placed as close as "
            "possible."
        ),
    )

    @property
    def label(self) -> str:
        """Label that has the same value on all nodes of one such place."""
        return GKE_TOPOLOGY_LABELS[self.level]


class Scheduling(ApiModel):
    """Who decides when the pods get their nodes, in addition to the cluster's scheduler."""

    queue_name: _QueueName | None = Field(
        default=None,
        description=(
            "Kueue's LocalQueue in the job's namespace, in which the job's pods wait for quota "
            "together; pods beyond elastic.minReplicas wait one by one. With gang: kai, KAI's "
            "queue."
        ),
    )
    gang: Literal["none", "native", "coscheduling", "kai"] = Field(
        default="none",
        description=(
            "Which scheduler places all pods or none. native: Kubernetes' own, from 1.37, with the "
            "feature gate GenericWorkload. coscheduling: a scheduler with that plugin. kai: "
            "KAI Scheduler (Run:ai), from 0.17; experimental. The last two must be installed."
        ),
    )

    topology: Topology | None = Field(
        default=None,
        description=(
            "Places pods close to each other: through Kueue if they are in its queue, otherwise by "
            "pod affinity among the pods of an attempt."
        ),
    )

    @property
    def kueue_queue(self) -> str | None:
        """Kueue's queue, or None if the pods are in none."""
        return None if self.gang == "kai" else self.queue_name

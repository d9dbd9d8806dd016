"""`DDPJob.spec.scheduling`: who decides when a job's pods get their nodes."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.api.spec.base import ApiModel

_QueueName = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""A name of an object that fits into a label."""


class Topology(ApiModel):
    """How near to each other the pods are placed."""

    level: Literal["block", "sub-block", "host"] = Field(
        description=(
            "What they share: a block, a sub-block or a host, by the labels gce-topology-block, "
            "-subblock and -host that GKE gives its nodes."
        )
    )
    required: bool = Field(
        default=False,
        description=(
            "true: pods that cannot be together wait. false: they are placed as near as it goes."
        ),
    )

    @property
    def label(self) -> str:
        """The label that nodes of one such place have in common."""
        return GKE_TOPOLOGY_LABELS[self.level]


class Scheduling(ApiModel):
    """Who decides when the pods get their nodes, beside the cluster's own scheduler."""

    queue_name: _QueueName | None = Field(
        default=None,
        description=(
            "Kueue's LocalQueue in the job's namespace, in which all pods of an attempt wait for "
            "quota together; with gang: volcano Volcano's queue."
        ),
    )
    gang: Literal["none", "native", "coscheduling", "volcano"] = Field(
        default="none",
        description=(
            "Who sees to it that all pods get nodes or none: Kubernetes' own scheduler (native, "
            "from 1.37, with the feature gate GenericWorkload), one with the coscheduling plugin, "
            "or Volcano. Each of the latter has to be installed."
        ),
    )

    topology: Topology | None = Field(
        default=None,
        description=(
            "Pods near each other: by Kueue where it has them in a queue, else by pod affinity "
            "among the pods of an attempt."
        ),
    )

    @property
    def kueue_queue(self) -> str | None:
        """Kueue's queue; None: the pods are in none."""
        return None if self.gang == "volcano" else self.queue_name

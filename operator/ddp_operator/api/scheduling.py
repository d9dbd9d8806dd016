"""`DDPJob.spec.scheduling`: who decides when a job's pods get their nodes."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_operator.api.base import ApiModel

_QueueName = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""A name of an object that fits into a label."""


class Scheduling(ApiModel):
    """Who decides when the pods get their nodes, beside the cluster's own scheduler."""

    queue_name: _QueueName | None = Field(
        default=None,
        description=(
            "Kueue's LocalQueue in the job's namespace, in which all pods of an attempt wait for "
            "quota together; with gang: volcano Volcano's queue."
        ),
    )
    gang: Literal["none", "coscheduling", "volcano"] = Field(
        default="none",
        description=(
            "Who sees to it that all pods get nodes or none: a scheduler with the coscheduling "
            "plugin, or Volcano. Either has to be installed."
        ),
    )

    @property
    def kueue_queue(self) -> str | None:
        """Kueue's queue; None: the pods are in none."""
        return None if self.gang == "volcano" else self.queue_name

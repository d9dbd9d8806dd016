"""`DDPJob.spec.restart`: what happens after a failure."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ddp_operator.api.spec.base import ApiModel
from ddp_operator.api.values.expressions import valid

FailureClass = Literal["Disruption", "Application", "Configuration", "Infrastructure"]


class Backoff(ApiModel):
    """Pauses between restarts that bring no progress; each is twice as long as the one before."""

    initial_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=5, description="Before the second charged restart in a row without progress."
    )
    max_seconds: Annotated[int, Field(ge=0, le=24 * 3600)] = Field(
        default=300, description="No pause is longer."
    )


class RestartRule(ApiModel):
    """What to do about failures of one kind.

    Every matcher that is given must match; a list matches when one of its elements does.
    """

    exit_codes: (
        Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=64)]
        | None
    ) = Field(
        default=None, description="Exit codes of the trainer container; 128 + n for signal n."
    )
    reasons: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=256)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = Field(default=None, description="Kubernetes' words for it, such as OOMKilled or Evicted.")
    message_regex: (
        Annotated[str, Field(min_length=1, max_length=256), AfterValidator(valid)] | None
    ) = Field(
        default=None,
        description=(
            "Regular expression (RE2's syntax) that is searched for in the failure's message."
        ),
    )
    ranks: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=1_000_000)]], Field(min_length=1, max_length=64)
        ]
        | None
    ) = Field(
        default=None, description="Global ranks; a pod whose failed rank is unknown has all of its."
    )
    classes: Annotated[list[FailureClass], Field(min_length=1, max_length=4)] | None = Field(
        default=None, description="Classes of failures, as in status.failures."
    )
    action: Literal["RestartPod", "RestartGang", "FailJob", "Ignore"] = Field(
        description="Ignore: the pod counts as one that ended well."
    )
    charged: bool | None = Field(
        default=None,
        description=(
            "Whether a restart counts against restart.maxRestarts. Absent: as the class says; "
            "only Application failures are charged."
        ),
    )


class Restart(ApiModel):
    """What happens after a failure."""

    scope: Literal["Gang", "Pod", "InPlace", "Auto"] = Field(
        default="Auto",
        description=(
            "Auto: what the pods' launcher says it can: Pod for trainers that form their group "
            "anew, InPlace for other scripts; Gang where no launcher answers, and in queues. Gang: "
            "all pods start again. Pod: only the failed pod is replaced, under the same identity, "
            "for trainers that form their group anew. InPlace: the processes of all pods start "
            "again, and only pods that are gone are replaced, for any script under the bundled "
            "launcher; without it, as Gang."
        ),
    )
    replace_when: Literal["Terminating", "Gone"] | None = Field(
        default=None,
        description=(
            "When new pods are created: once the old ones were told to end, or once they have "
            "ended (or do not answer any more). Absent: Gone for a whole gang, whose old rank 0 "
            "may still save and whose GPUs are needed; Terminating for a single pod, since the "
            "others wait for its replacement."
        ),
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description="Failures of the training itself that are forgiven; disruptions never count.",
    )
    reset_after_progress: bool = Field(
        default=True,
        description=(
            "Count from zero again once a later step was checkpointed than at the last restart."
        ),
    )
    backoff: Backoff = Field(default_factory=Backoff, json_schema_extra={"default": {}})
    node_failure_limit: Annotated[int, Field(ge=0, le=100)] = Field(
        default=2,
        description=(
            "After this many failures on one node the job's next pods avoid it, up to a quarter "
            "of the nodes that fit. 0: no node is avoided."
        ),
    )
    rules: Annotated[list[RestartRule], Field(max_length=16)] = Field(
        default_factory=list,
        description="What to do about failures; the first that matches. None matches: by scope.",
    )

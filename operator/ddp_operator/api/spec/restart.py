"""`DDPJob.spec.restart`: what happens after a failure."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ddp_operator.api.spec.base import ApiModel, Seconds
from ddp_operator.api.values.expressions import valid

FailureClass = Literal["Disruption", "Application", "Configuration", "Infrastructure"]


class Backoff(ApiModel):
    """Pauses between restarts without progress after failures of the training itself. Each pause is
    twice as long as the one before.
    """

    initial_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=5,
        description="Pause before the second restart in a row without progress, in seconds.",
    )
    max_seconds: Annotated[int, Field(ge=0, le=24 * 3600)] = Field(
        default=300, description="Longest pause, in seconds."
    )


class RestartRule(ApiModel):
    """A rule for failures of one kind.

    A failure must match all matchers of the rule. A list matches if one of its elements does.
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
    ) = Field(
        default=None, description="Reasons that Kubernetes gives, such as OOMKilled or Evicted."
    )
    message_regex: (
        Annotated[str, Field(min_length=1, max_length=256), AfterValidator(valid)] | None
    ) = Field(
        default=None,
        description="Regular expression (RE2 syntax) to search for in the failure's message.",
    )
    ranks: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=1_000_000)]], Field(min_length=1, max_length=64)
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "Global ranks. If a pod's failed rank is unknown, any rank of the pod matches."
        ),
    )
    classes: Annotated[list[FailureClass], Field(min_length=1, max_length=4)] | None = Field(
        default=None, description="Failure classes, as in status.failures."
    )
    action: Literal["RestartPod", "RestartGang", "FailJob", "Ignore"] = Field(
        description="What to do about the failure. Ignore: the pod counts as completed."
    )
    charged: bool | None = Field(
        default=None,
        description=(
            "Whether the restart counts against restart.maxRestarts. Default: only Application "
            "failures count."
        ),
    )


class SlowRankPolicy(ApiModel):
    """What to do about a rank that makes the others wait in each step."""

    factor: Annotated[float, Field(ge=1, le=100)] = Field(
        default=1.3,
        description=(
            "A rank is slow if its own time per step, without waiting for others, is this many "
            "times the mean of the others, in three comparisons in a row."
        ),
    )
    for_seconds: Seconds = Field(
        default=600,
        description=(
            "How long a rank is slow before action Replace replaces its pod. It is also the least "
            "time between two such replacements."
        ),
    )
    action: Literal["Report", "Replace"] = Field(
        default="Report",
        description=(
            "Report: name the rank in status.slowRank, and in an Event. Replace: also replace its "
            "pod, uncharged. A spare takes over, or another node must fit. The job's next pods "
            "avoid the node."
        ),
    )


class Restart(ApiModel):
    """Handling of failures: restart scope, budget, pauses and rules."""

    scope: Literal["Gang", "Pod", "InPlace", "Auto"] = Field(
        default="Auto",
        description=(
            "What restarts after a failure. Auto: Pod if the pods' launcher reports that its "
            "trainer can form the process group again, InPlace for other scripts; Gang if no "
            "launcher answers. Gang: all pods restart. Pod: only the failed pod is "
            "replaced, under the same identity; the trainer must be able to form the process group "
            "again. InPlace: the processes of all pods restart, and only missing pods are "
            "replaced. It works with any script under the bundled launcher; without the launcher "
            "it is the same as Gang."
        ),
    )
    replace_when: Literal["Terminating", "Gone"] | None = Field(
        default=None,
        description=(
            "When to create new pods. Terminating: as soon as the old ones receive the order to "
            "stop. Gone: once the old ones have ended or no longer answer. Default: Gone for a "
            "whole gang, because the old rank 0 may still save and its GPUs are needed; "
            "Terminating for a single pod, because the others wait for its replacement. In a queue "
            "always Gone."
        ),
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description=(
            "How many failures of the training itself the job survives. Disruptions do not count. "
            "The count begins again when a later step is saved than ever before."
        ),
    )
    backoff: Backoff = Field(default_factory=Backoff, json_schema_extra={"default": {}})
    node_failure_limit: Annotated[int, Field(ge=0, le=100)] = Field(
        default=2,
        description=(
            "After this many failures on one node, the job's next pods prefer other nodes. "
            "0: avoid no node."
        ),
    )
    slow_rank: SlowRankPolicy | None = Field(
        default=None,
        description=(
            "Slow ranks, as the bundled trainer and ddp_trainer.join measure them. Default: those "
            "that need 1.5 times the others' time are reported."
        ),
    )
    rules: Annotated[list[RestartRule], Field(max_length=16)] = Field(
        default_factory=list,
        description=(
            "What to do about failures; the first matching rule applies. If none matches, scope "
            "decides."
        ),
    )

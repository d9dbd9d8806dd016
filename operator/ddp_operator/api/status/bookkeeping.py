"""`DDPJob.status.bookkeeping`: what only the operator reads."""

from typing import Annotated, Final

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.values.bounded import (
    Count,
    Name,
    StatusModel,
    Step,
    Time,
    Word,
    first_items,
    last_items,
    wire_name,
)


class Bookkeeping(StatusModel):
    """What only the operator remembers, be it before it acts (`replacements`, `replacing`)."""

    replacements: Annotated[dict[str, Count], first_items(MAX_REPLICAS)] = Field(
        default_factory=dict,
        description="By replica index: how often this attempt's pod was replaced, where it was.",
    )
    replacing: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description="Replica indices whose replacements may not exist yet; all other pods do.",
    )
    accepted_spec_hash: Name = Field(
        default="",
        description="Digest of the spec whose pods the API server last accepted, all of them.",
    )
    ran_spec_hash: Name = Field(
        default="",
        description="Digest of the spec that has run: each kind of pod with it has started once.",
    )
    restart_requested: Word = Field(
        default="", description="The annotation restart-requested, as it was acted on last."
    )
    isolation: Word = Field(
        default="",
        description="Job: its NetworkPolicy exists. Changing: it may. Absent: it does not.",
    )
    restarts_without_progress: Count = Field(
        default=0,
        description="Charged restarts since the checkpointed step last advanced.",
    )
    checkpoint_step_at_restart: Step = Field(
        default=0, description="The checkpointed step from which restarts without progress count."
    )
    node_failures_without_progress: Count = Field(
        default=0, description="Node-level failures since the checkpointed step last advanced."
    )
    lost_checkpoints: Count | None = Field(
        default=None,
        description=(
            "How often training resumed behind a checkpointed step, since it last resumed beyond "
            "all of those."
        ),
    )
    farthest_lost_step: Step | None = Field(
        default=None, description="The last of the checkpointed steps that training resumed behind."
    )
    broken_since: Time | None = Field(
        default=None,
        description=(
            "Since when a failure keeps the group from training: what else fails in its pods is "
            "part of that failure."
        ),
    )
    renewed: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description="Numbers of the group's pods that are new since then: they fail on their own.",
    )
    suspended_seconds: Count = Field(
        default=0,
        description="Time spent suspended or queued since startTime, up to the last end of it.",
    )
    queued_since: Time | None = Field(
        default=None, description="Since when pods wait to be admitted."
    )
    signalled_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(), description="Those of excludedNodes that say so themselves, by their signals."
    )
    excluded_boot_ids: Annotated[dict[Name, Word], first_items(100)] = Field(
        default_factory=dict,
        description="By node that is excluded because of failures: the boot ID that it had.",
    )
    left_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description="Nodes whose pods were replaced since they were about to go, by boot ID.",
    )
    asked_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description="The same, of nodes because of whose end a checkpoint was asked for.",
    )
    launcher: Word = Field(
        default="",
        description=(
            "What the pods' launcher has said: Pod: its processes form their group anew, InPlace: "
            "it starts them anew."
        ),
    )
    saved_in_pod: Count | None = Field(
        default=None,
        description=(
            "The last attempt in which rank 0 saved to its pod's own disk. In that attempt no pod "
            "joins the group, and a failure restarts all pods."
        ),
    )
    spares: Annotated[tuple[Count, ...], last_items(MAX_SPARES)] = Field(
        default=(), description="Numbers of pods without a place that were seen."
    )
    spares_renewed: Count | None = Field(
        default=None,
        description="Replacements of this attempt whose pods had no place in the group.",
    )
    no_spare_before: Time | None = Field(
        default=None, description="No spare is created before this time."
    )
    ordered: Annotated[tuple[Count, ...], last_items(2)] = Field(
        default=(),
        description=(
            "Attempt and replaced pods of the group for which node ranks were last given out along "
            "the topology."
        ),
    )
    scheduling_retries: Count = Field(
        default=0, description="How often half-placed pods were given up, since all last ran."
    )


NOTES: Final = frozenset(wire_name(name) for name in Bookkeeping.model_fields)
"""The bookkeeping's fields as they are stored."""

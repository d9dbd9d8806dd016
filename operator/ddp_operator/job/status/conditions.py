"""Conditions, and the phase derived from them."""

from datetime import datetime
from typing import Literal, get_args

from ddp_operator.api.status import Condition, ConditionStatus, ConditionType, DDPJobStatus, Phase

# Reasons of the condition Running; `ddp_client.views.reasons` says what each means.
PODS_READY = "PodsReady"
PODS_NOT_READY = "PodsNotReady"
NAME_TAKEN = "NameTaken"
PODS_FORBIDDEN = "PodsForbidden"
API_SERVER_ERROR = "APIServerError"
PODS_STARTING = "PodsStarting"
QUEUED = "Queued"


def with_condition(
    status: DDPJobStatus,
    type_: ConditionType,
    value: bool,
    reason: str,
    message: str,
    now: datetime,
) -> DDPJobStatus:
    """Return the status with one condition set. Its transition time changes only with its value."""
    old = status.condition(type_)
    new_status: ConditionStatus = "True" if value else "False"
    since = old.last_transition_time if old and old.status == new_status else now
    condition = Condition(
        type=type_,
        status=new_status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=status.observed_generation,
    )
    if old is None:
        conditions = (*status.conditions, condition)
    else:
        conditions = tuple(condition if c.type == type_ else c for c in status.conditions)
    return status.updated(conditions=conditions)


_Naming = Literal["Failed", "Succeeded", "Suspended", "Running", "Restarting"]
_BY_PRECEDENCE: tuple[_Naming, ...] = get_args(_Naming)
"""The first that is true names the phase."""


def with_phase(status: DDPJobStatus, *, pods_scheduled: bool) -> DDPJobStatus:
    """Return the status with phase, reason and message derived from its conditions."""
    running = status.condition("Running")
    naming = next((type_ for type_ in _BY_PRECEDENCE if status.is_true(type_)), None)
    phase: Phase
    if naming == "Restarting" and running is not None and running.reason == QUEUED:
        naming = None  # a wait in the queue is no restart
    if naming is None:
        phase, condition = "Starting" if pods_scheduled else "Pending", running
    else:
        phase, condition = naming, status.condition(naming)
    # Show the reason of the restart, unless something keeps the new pods from starting.
    if naming == "Restarting" and running is not None and running.reason != PODS_STARTING:
        condition = running
    return status.updated(
        phase=phase,
        reason=condition.reason if condition else "",
        message=condition.message if condition else "",
    )

"""Conditions, and the phase that follows from them."""

from datetime import datetime
from typing import Literal

from ddp_operator.api.status import Condition, ConditionStatus, ConditionType, DDPJobStatus, Phase

PODS_READY = "PodsReady"
"""Reason of the condition Running while all pods train as they should."""

PODS_NOT_READY = "PodsNotReady"
"""Reason of the condition Running while training goes on, as far as is known, but the kubelet does
not call all pods ready any more."""

NAME_TAKEN = "NameTaken"
"""Reason of the condition Running while an object of another owner bears a name that is needed."""

PODS_FORBIDDEN = "PodsForbidden"
"""Reason of the condition Running while a quota or a policy keeps pods from being created."""

API_SERVER_ERROR = "APIServerError"
"""Reason of the condition Running while the API server, or a webhook that it asks, keeps answering
with errors."""

STATUS_NOT_STORED = "StatusNotStored"
"""Reason of the condition Running while the CRD drops what a decision must remember."""

PODS_STARTING = "PodsStarting"
"""Reason of the condition Running while pods start as they should."""

QUEUED = "Queued"
"""Reason of the condition Running while pods wait to be admitted, and no scheduler looks at
them."""


def with_condition(
    status: DDPJobStatus,
    type_: ConditionType,
    value: bool,
    reason: str,
    message: str,
    now: datetime,
) -> DDPJobStatus:
    """Return the status with one condition set.

    Its transition time moves only when its value does; its generation is that of the status.
    """
    old = status.condition(type_)
    new_status: ConditionStatus = "True" if value else "False"
    changed = old is None or old.status != new_status
    condition = Condition(
        type=type_,
        status=new_status,
        reason=reason,
        message=message,
        last_transition_time=now if old is None or changed else old.last_transition_time,
        observed_generation=status.observed_generation,
    )
    if old is None:
        conditions = (*status.conditions, condition)
    else:
        conditions = tuple(condition if c.type == type_ else c for c in status.conditions)
    return status.model_copy(update={"conditions": conditions})


# In this order: the first that is true names the phase.
_NAMING: tuple[Literal["Failed", "Succeeded", "Suspended", "Running", "Restarting"], ...] = (
    "Failed",
    "Succeeded",
    "Suspended",
    "Running",
    "Restarting",
)


def with_phase(status: DDPJobStatus, *, pods_scheduled: bool) -> DDPJobStatus:
    """Return the status with phase, reason and message derived from its conditions."""
    running = status.condition("Running")
    naming = next((type_ for type_ in _NAMING if status.is_true(type_)), None)
    phase: Phase
    if naming == "Restarting" and running is not None and running.reason == QUEUED:
        naming = None  # it is nobody's loss but the queue's
    if naming is None:
        phase, condition = "Starting" if pods_scheduled else "Pending", running
    else:
        phase, condition = naming, status.condition(naming)
    # A restart says why it came to be, unless something keeps the new pods from starting.
    if naming == "Restarting" and running is not None and running.reason != PODS_STARTING:
        condition = running
    return status.model_copy(
        update={
            "phase": phase,
            "reason": condition.reason if condition else "",
            "message": condition.message if condition else "",
        }
    )

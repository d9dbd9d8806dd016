"""Conditions, and the phase that follows from them."""

from collections.abc import Mapping
from datetime import datetime

from ddp_operator.api.status import Condition, ConditionStatus, ConditionType, DDPJobStatus, Phase

MAX_MESSAGE = 4096
"""Characters of a condition's message: well below what one stored object may hold, enough for
any sentence.
"""


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
        message=message[:MAX_MESSAGE],
        last_transition_time=now if old is None or changed else old.last_transition_time,
        observed_generation=status.observed_generation,
    )
    if old is None:
        conditions = (*status.conditions, condition)
    else:
        conditions = tuple(condition if c.type == type_ else c for c in status.conditions)
    return status.model_copy(update={"conditions": conditions})


def with_phase(status: DDPJobStatus, *, pods_scheduled: bool) -> DDPJobStatus:
    """Return the status with phase, reason and message derived from its conditions."""
    by_type: Mapping[str, Condition] = {c.type: c for c in status.conditions}
    order: tuple[ConditionType, ...] = (
        "Failed",
        "Succeeded",
        "Suspended",
        "Running",
        "Restarting",
    )
    phase: Phase
    for type_ in order:
        if status.is_true(type_):
            # Each of these conditions bears the name of the phase that it means.
            phase, condition = type_, by_type[type_]  # type: ignore[assignment]
            break
    else:
        phase = "Starting" if pods_scheduled else "Pending"
        condition = by_type.get("Running") or by_type.get("PodsCreated")  # type: ignore[assignment]
    return status.model_copy(
        update={
            "phase": phase,
            "reason": condition.reason if condition else "",
            "message": condition.message if condition else "",
        }
    )

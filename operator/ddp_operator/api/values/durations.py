"""Durations that people write, in the form of Kubernetes' `metav1.Duration`."""

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

_FORM: Final = r"^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?$"

Duration = Annotated[str, Field(min_length=2, max_length=15, pattern=_FORM)]
"""Hours, minutes and seconds, such as 1h30m."""


def duration(text: str) -> timedelta:
    """Return the time span of a valid duration."""
    amounts = {unit: int(amount) for amount, unit in re.findall("([0-9]+)([hms])", text)}
    return timedelta(
        hours=amounts.get("h", 0), minutes=amounts.get("m", 0), seconds=amounts.get("s", 0)
    )

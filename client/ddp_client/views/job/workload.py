"""The parts of a Kueue Workload that explain why a job waits (v1beta1 and v1beta2)."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Self

from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_MESSAGE: Final = 400
"""Most characters of a message of Kueue that are shown."""
_HELD: Final = re.compile(r"(?:Local|Cluster)Queue \S+ (is |doesn't exist|not found)")


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Condition(_Part):
    """A condition of a Workload or queue."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Check(_Part):
    """The state of an admission check."""

    name: str
    state: str
    message: str = ""


class _Requeue(_Part):
    count: int | None = None
    requeue_at: AwareDatetime | None = None


class _Spec(_Part):
    active: bool | None = None


class _Status(_Part):
    conditions: list[Condition] = Field(default_factory=list)
    admission_checks: list[Check] = Field(default_factory=list)
    requeue_state: _Requeue | None = None


class Workload(_Part):
    """The parts of a Workload that explain why it waits."""

    spec: _Spec = _Spec()
    status: _Status = _Status()

    @classmethod
    def read(cls, manifest: Manifest) -> Self | None:
        """Return a Workload as the API server stores it; None if it cannot be read."""
        try:
            return cls.model_validate(manifest)
        except ValidationError:
            return None

    @cached_property
    def _conditions(self) -> Mapping[str, Condition]:
        return {each.type: each for each in self.status.conditions}

    def condition(self, type_: str, status: str) -> Condition | None:
        """Return a condition with this status; None if it has another."""
        found = self._conditions.get(type_)
        return found if found is not None and found.status == status else None

    @property
    def held(self) -> bool:
        """True if its queue is missing or admits nothing."""
        pending = self.condition("QuotaReserved", "False")
        return pending is not None and _HELD.match(pending.message) is not None


def inactive(queue: Manifest) -> str:
    """Return why a LocalQueue or ClusterQueue admits nothing; empty if it does or it is unknown."""
    read = Workload.read({"status": queue.get("status") or {}})
    found = read.condition("Active", "False") if read else None
    return said(found)


def said(part: Condition | Check | None) -> str:
    """Return Kueue's message, safe to print, without its full stop; empty without one."""
    return clean(part.message, _MESSAGE).rstrip(".") if part else ""

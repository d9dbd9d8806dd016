"""The parts of a Kueue Workload that explain why a job waits (v1beta1 and v1beta2)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final, Self

from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_MESSAGE: Final = 400
"""Most characters of a message of Kueue that are shown."""


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
        condition = self._conditions.get(type_)
        return condition if condition is not None and condition.status == status else None


def inactive(queue: Manifest) -> str:
    """Return why a LocalQueue or ClusterQueue admits nothing; empty if it does or it is unknown."""
    read = Workload.read({"status": queue.get("status") or {}})
    condition = read.condition("Active", "False") if read else None
    return message_of(condition)


def message_of(part: Condition | Check | None) -> str:
    """Return Kueue's message, safe to print, without its full stop; empty without one."""
    return clean(part.message, _MESSAGE).rstrip(".") if part else ""

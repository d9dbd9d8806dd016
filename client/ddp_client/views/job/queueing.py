"""Kueue's own words about a waiting job (kueue.x-k8s.io v1beta1 and v1beta2).

Its messages are shown as they are: Kueue words them differently from release to release. Which one
is shown depends on conditions and admission checks only.
"""

from dataclasses import dataclass
from typing import Final, Self

from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_MESSAGE: Final = 400
"""Most characters of a message of Kueue that are shown."""
_WAITS: Final = ("QuotaReserved", "False")
"""The condition of a Workload that waits for quota."""
_GENERAL: Final = frozenset({"", "Pending", "PendingEvaluation", "Inadmissible", "Waiting"})
"""Reasons that say only that a Workload waits. Kueue before 0.18 has no others."""
_REMEDIES: Final = {
    "ExceedsMaxQuota": "ask for fewer or smaller pods, or have the queue's quota raised: the job "
    "is larger than all of it",
    "NoMatchingFlavor": "compare nodeSelector and tolerations in spec.template with the queue's "
    "ResourceFlavors",
    "Misconfigured": "correct what Kueue's message names, or ask the queue's administrator",
}
"""For Kueue's reasons of waits that do not end by themselves."""


@dataclass(frozen=True)
class QueueState:
    """The state of a waiting job in its queue; all texts are empty if unknown."""

    position: str = ""
    """The number of jobs ahead."""
    message: str = ""
    """Kueue's own message about the wait."""
    eviction: str = ""
    """Kueue's message about the latest eviction, if it is another one."""
    remedy: str = ""


UNKNOWN: Final = QueueState()
"""The state of a job that waits in no queue, or in one that the user may not read."""


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class _Condition(_Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Check(_Part):
    name: str
    state: str
    message: str = ""


class _Spec(_Part):
    active: bool | None = None


class _Status(_Part):
    conditions: list[_Condition] = Field(default_factory=list)
    admission_checks: list[_Check] = Field(default_factory=list)


class Workload(_Part):
    """The parts of a Workload that say why it waits."""

    spec: _Spec = _Spec()
    status: _Status = _Status()

    @classmethod
    def read(cls, manifest: Manifest) -> Self | None:
        """Return a Workload as the API server stores it; None if it cannot be read."""
        try:
            return cls.model_validate(manifest)
        except ValidationError:
            return None

    def message(self, type_: str, status: str = "True") -> str:
        """Return the message of a condition with this status; empty without one."""
        found = self._condition(type_, status)
        return _shown(found.message) if found else ""

    def reason(self, type_: str, status: str = "True") -> str:
        """Return the reason of a condition with this status; empty without one."""
        found = self._condition(type_, status)
        return clean(found.reason, 64) if found else ""

    def _condition(self, type_: str, status: str) -> _Condition | None:
        key = (type_, status)
        return next((one for one in self.status.conditions if (one.type, one.status) == key), None)


def explain(workload: Workload, name: str, *, position: str = "", closed: str = "") -> QueueState:
    """Return Kueue's message about a Workload that waits.

    `position`: the number of jobs ahead, as text. `closed`: why its queue admits nothing.
    """
    eviction, pending = workload.message("Evicted"), workload.message(*_WAITS)
    deactivation, reason = workload.message("DeactivationTarget"), workload.reason(*_WAITS)
    remedy = _REMEDIES.get(reason, "")
    if deactivation or workload.spec.active is False:
        # Kueue 0.17 does not queue a Workload that it deactivated, even if it is active again.
        # Kubernetes has a kind Workload, too: the name includes the group.
        remedy = f"to queue the job again: kubectl delete workloads.kueue.x-k8s.io {name}"
        deactivation = deactivation or eviction or "the Workload's spec.active is false"
    elif pending and closed:
        pending, position = f"{pending}: {closed}", ""
    elif pending and reason not in _GENERAL:
        pending = f"{pending} ({reason})"
    message = workload.message("Finished") or deactivation or pending or _check(workload)
    return QueueState(position, message, "" if eviction in message else eviction, remedy)


def inactive(queue: Manifest) -> str:
    """Return why a LocalQueue or ClusterQueue admits nothing; empty if it does or it is unknown."""
    read = Workload.read({"status": queue.get("status") or {}})
    return read.message("Active", "False") if read else ""


def _check(workload: Workload) -> str:
    """Return the state of the first admission check that the Workload waits for."""
    waits = (check for check in workload.status.admission_checks if check.state != "Ready")
    if (check := next(waits, None)) is None:
        return ""
    text = f"admission check {clean(check.name, 64)} is {clean(check.state, 16)}"
    return f"{text}: {_shown(check.message)}".rstrip(": ")


def _shown(message: str) -> str:
    """Return a message, safe to print, without its full stop."""
    return clean(message, _MESSAGE).rstrip(".")

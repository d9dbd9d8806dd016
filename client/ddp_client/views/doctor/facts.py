"""The facts that the check needs, and the form of its findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ddp_operator.api.values.text import clean

Level = Literal["ok", "warn", "fail", "not known"]
_NAMES: Final = 3


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read."""

    why: str


@dataclass(frozen=True)
class Finding:
    """One result of the check."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


@dataclass
class Facts:
    """Answers of the API server. Each may be unknown: a user may lack the right to read it."""

    namespace: str
    release: str
    """Version of this program."""
    version: Mapping[str, Any] | Unknown
    served: bool | Unknown
    crd: Mapping[str, Any] | Unknown
    operators: Sequence[Mapping[str, Any]] | Unknown
    """Deployments with the operator's label."""
    missing: Sequence[str] | Unknown
    """Rights that this user lacks."""
    nodes: Sequence[Mapping[str, Any]] | Unknown
    pods: Sequence[Mapping[str, Any]] | None
    """Pods of all namespaces that have GPUs; None if unknown."""
    limits: Sequence[Mapping[str, Any]] | Unknown
    """LimitRanges of the namespace."""
    labels: Mapping[str, str] | Unknown
    """Labels of the namespace."""
    storage: Sequence[Mapping[str, Any]] | Unknown
    """Storage classes."""
    schedulers: Mapping[str, bool | Unknown] = field(default_factory=dict)
    """By scheduler: true when the cluster serves its kinds."""
    domains: bool | Unknown = False
    """True when the cluster serves ComputeDomains."""
    queues: Sequence[str] | Unknown = ()
    """Kueue's LocalQueues in the namespace."""


def not_known(subject: str, what: Unknown) -> Finding:
    """Return the finding for a fact that could not be read."""
    return Finding("not known", subject, clean(what.why, 200))


def count(value: object) -> int:
    """Return a quantity as an integer; 0 for anything but a whole number."""
    digits = str(value or 0)
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0


def first_few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(clean(name, 100) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown

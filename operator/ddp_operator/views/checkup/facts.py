"""What is looked at, and how it is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ddp_operator.views.text import clean

Level = Literal["ok", "warn", "fail", "not known"]
_NAMES: Final = 3


@dataclass(frozen=True)
class Unknown:
    """What could not be found out, and why."""

    why: str


@dataclass(frozen=True)
class Finding:
    """One line of the check-up."""

    level: Level
    subject: str
    said: str
    remedy: str = ""


@dataclass
class Facts:
    """What the API server has told, each by itself: users of a namespace may not ask for all."""

    namespace: str
    release: str
    """Of this program."""
    version: Mapping[str, Any] | Unknown
    served: bool | Unknown
    crd: Mapping[str, Any] | Unknown
    operators: Sequence[Mapping[str, Any]] | Unknown
    """Deployments that bear the operator's label."""
    missing: Sequence[str] | Unknown
    """Rights that this user has not."""
    nodes: Sequence[Mapping[str, Any]] | Unknown
    limits: Sequence[Mapping[str, Any]] | Unknown
    """LimitRanges of the namespace."""
    labels: Mapping[str, str] | Unknown
    """Of the namespace."""
    storage: Sequence[Mapping[str, Any]] | Unknown
    """Storage classes."""
    schedulers: Mapping[str, bool | Unknown] = field(default_factory=dict)
    """Whether the kinds of each are served."""
    queues: Sequence[str] | Unknown = ()
    """Kueue's LocalQueues in the namespace."""


def not_known(subject: str, what: Unknown) -> Finding:
    """A finding that is none."""
    return Finding("not known", subject, clean(what.why, 200))


def path(manifest: Any, *names: str) -> Any:
    """What is in there, or None."""
    for name in names:
        manifest = manifest.get(name) if isinstance(manifest, Mapping) else None
    return manifest


def count(value: object) -> int:
    """A quantity that is a whole number; anything else is none."""
    said = str(value or 0)
    return int(said) if said.isdecimal() and len(said) < 10 else 0


def first_few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(clean(name, 100) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown

"""The level of Pod Security that a namespace enforces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

Level = Literal["privileged", "baseline", "restricted"]

_LEVELS: Final[tuple[Level, ...]] = ("privileged", "baseline", "restricted")
_LABEL: Final = "pod-security.kubernetes.io/enforce"


@dataclass(frozen=True, slots=True)
class PodSecurity:
    """The level that a namespace enforces by its labels."""

    level: Level
    version: str = "latest"
    """The Kubernetes release of the rules."""

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Self | None:
        """Return what a namespace's labels enforce; None: the API server's default."""
        said = labels.get(_LABEL)
        if said is None:
            return None
        # Like the API server, take an unknown level as the strictest one.
        level: Level = next((known for known in _LEVELS if known == said), "restricted")
        return cls(level, labels.get(f"{_LABEL}-version", "latest"))

"""A journal of all disturbances: the first thing to read after a failure."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.schedule import Kind


@dataclass(frozen=True)
class Deed:
    """One disturbance that took place."""

    seconds: float
    """Since the journal was opened."""
    kind: Kind
    job: str = ""
    """The pod's job; empty if the target was no pod of a job."""
    pod: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {self.kind.value}  {self.pod}".rstrip()


@dataclass
class Journal:
    """All deeds in order, and what else was worth a line."""

    seed: int
    deeds: list[Deed] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)
    opened: float = field(default_factory=time.time)
    """In seconds since 1970."""

    def did(self, kind: Kind, *, job: str = "", pod: str = "") -> None:
        """Note a deed."""
        deed = Deed(self._now(), kind, job, pod)
        self.deeds.append(deed)
        self._lines.append(str(deed))

    def note(self, text: str) -> None:
        """Add any other line."""
        self._lines.append(f"{self._now():6.1f} s    {text}")

    def text(self) -> str:
        """Everything, for people."""
        return "\n".join([self.summary(), *self._lines])

    def summary(self) -> str:
        """How much was done, in one line."""
        counted = Counter(deed.kind for deed in self.deeds)
        kinds = "; ".join(f"{count} x {kind.value}" for kind, count in counted.items())
        return f"seed {self.seed} (CHAOS_SEED={self.seed} repeats it): {kinds or 'nothing done'}"

    def _now(self) -> float:
        return time.time() - self.opened

"""Says what restarts in place took, and where their time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Final

from tests.bench.benchmark import Outcome, spread


@dataclass(frozen=True, kw_only=True)
class Restart:
    """One restart of all ranks; seconds since the first one was killed."""

    heard: float
    """The operator knows of it."""
    recorded: float
    """The next generation is on record."""
    ended: float
    """The last launcher has said that none of its ranks runs any more."""
    told: float
    """The last launcher has heard that it may start."""
    begun: float
    """The last new process runs."""
    tellings: int
    """Requests to launchers: two for each, where all went well."""
    cpu: float
    """Seconds of CPU time that the operator took."""


_PARTS: Final = {"heard": "heard", "recorded": "on record", "ended": "all ended"}
"""In the order in which they come."""


def table(found: Mapping[str, Mapping[int, Sequence[Restart]]]) -> Outcome:
    """By what happens to the ranks, and the number of launchers; in lines of at most 80
    characters.
    """
    parts = "".join(f"{title:>10}" for title in _PARTS.values())
    lines = [f"{'launchers':12}{parts}{'all begun':>20}{'requests':>10}{'CPU':>8}"]
    for what, by_size in found.items():
        lines.append(what)
        for pods, restarts in by_size.items():
            medians = "".join(f"{_median(restarts, name):10.2f}" for name in _PARTS)
            begun = spread([restart.begun for restart in restarts], 2)
            requests = f"{_median(restarts, 'tellings') / pods:10.2f}"
            cpu = f"{_median(restarts, 'cpu'):8.2f}"
            lines.append(f"{pods:>10}  {medians}{begun:>20}{requests}{cpu}")
    data = {
        what: {
            str(pods): {
                field.name: [getattr(restart, field.name) for restart in restarts]
                for field in fields(Restart)
            }
            for pods, restarts in by_size.items()
        }
        for what, by_size in found.items()
    }
    return Outcome("\n".join(lines), data)


def _median(restarts: Sequence[Restart], name: str) -> float:
    return float(median(getattr(restart, name) for restart in restarts))

"""Says what restarts in place took, and where their time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tests.bench.benchmark import Outcome, spread


@dataclass(frozen=True, kw_only=True)
class Restart:
    """One restart of all ranks; seconds since the one rank was killed."""

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


_COLUMNS: Mapping[str, tuple[str, int]] = {
    "heard": ("heard", 2),
    "recorded": ("on record", 2),
    "ended": ("all ended", 2),
    "told": ("all told", 2),
    "begun": ("all begun", 2),
}


def table(found: Mapping[int, Sequence[Restart]]) -> Outcome:
    """By the number of launchers; in lines of at most 80 characters."""
    titles = "".join(f"{title:>10}" for title, _ in _COLUMNS.values())
    lines = [f"{'launchers':10}{titles}{'operator CPU':>18}"]
    for pods, restarts in found.items():
        columns = [
            spread([getattr(restart, name) for restart in restarts], digits)
            for name, (_, digits) in _COLUMNS.items()
        ]
        medians = "".join(f"{column.split()[0]:>10}" for column in columns)
        cpu = spread([restart.cpu for restart in restarts], 2)
        lines.append(f"{pods:<10}{medians}{cpu:>18}")
    lines += ["", f"{'launchers':10}{'all begun, s':>26}{'requests a launcher':>26}"]
    for pods, restarts in found.items():
        begun = spread([restart.begun for restart in restarts], 2)
        tellings = spread([restart.tellings / pods for restart in restarts], 2)
        lines.append(f"{pods:<10}{begun:>26}{tellings:>26}")
    data = {
        str(pods): {
            field.name: [getattr(restart, field.name) for restart in restarts]
            for field in fields(Restart)
        }
        for pods, restarts in found.items()
    }
    return Outcome("\n".join(lines), data)

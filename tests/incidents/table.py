"""The table of incidents, in docs/concepts/incidents.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.incidents.incidents import INCIDENTS
from tests.incidents.scene import Incident
from tests.incidents.verdict import Seen

PAGE: Final = Path(__file__).parents[2] / "docs/concepts/incidents.md"
Column = Literal["torchrun", "JobSet", "TrainJob"]
"""Controllers that the incidents happen to, too."""
PASSED: Final = "passed"
_BEGIN, _END = "<!-- written by `make incidents` -->\n\n", "\n<!-- end -->"
_HEADS: Final[Mapping[Column, str]] = {
    "torchrun": "torchrun in a Job",
    "JobSet": "JobSet",
    "TrainJob": "TrainJob",
}
_HEAD = (
    *("incident", "what is done", "verdict", "failures", "charged"),
    *("seconds without a step: DDPJob", *_HEADS.values()),
)
_OWN: Final = len(_HEAD) - len(_HEADS)
_NONE: Final = "not tried"


@dataclass(frozen=True)
class Row:
    """The verdict on an incident."""

    incident: Incident
    verdict: str
    seconds_without_step: float
    failures: int
    charged: int

    @classmethod
    def of(cls, incident: Incident, seen: Seen, complaints: Sequence[str]) -> Row:
        """Take it from what was seen and how it was judged."""
        return cls(
            incident,
            "; ".join(complaints) or PASSED,
            seen.seconds_without_step(),
            len(seen.status.failures),
            seen.status.restarts,
        )

    def cells(self) -> list[str]:
        """Return the line of the table, without the cells of other controllers."""
        return [
            self.incident.what,
            self.incident.done,
            self.verdict,
            str(self.failures),
            str(self.charged),
            f"{self.seconds_without_step:.0f}",
        ]

    def text(self) -> str:
        """Return the line in Markdown."""
        return _line(self.cells())


ROWS: Final = pytest.StashKey[list[Row]]()
OUTCOMES: Final = pytest.StashKey[dict[tuple[Column, str], str]]()
"""The other controllers' cells, by column and the incident's name."""


def updated(page: str, rows: Sequence[Row], outcomes: Mapping[tuple[Column, str], str]) -> str:
    """Return the page with the results of a run.

    The operator's cells change if each incident passed; otherwise only those of incidents that were
    not tried before do. Each outcome of another controller has its cell.
    """
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    before = {cells[0]: cells for cells in map(_cells, page[begin:end].splitlines())}
    passed = {row.incident.name: row.cells() for row in rows if row.verdict == PASSED}
    is_whole = passed.keys() == {incident.name for incident in INCIDENTS}
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    for incident in INCIDENTS:
        cells = before.get(incident.what, [incident.what, *[_NONE] * (len(_HEAD) - 1)])
        cells, others = cells[:_OWN], cells[_OWN:]
        if is_whole or (cells[1] == _NONE and incident.name in passed):
            cells = passed[incident.name]
        others = [
            outcomes.get((column, incident.name), cell)
            for column, cell in zip(_HEADS, others, strict=True)
        ]
        lines.append(_line([*cells, *others]))
    text = "\n".join(lines)
    return f"{page[:begin]}{text}\n{page[end:]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(line: str) -> list[str]:
    return line.removeprefix("| ").removesuffix(" |").split(" | ")

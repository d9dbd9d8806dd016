"""The table of incidents, in docs/concepts/incidents.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.incidents.incidents import INCIDENTS
from tests.incidents.scene import Incident
from tests.incidents.verdict import Seen

PAGE: Final = Path(__file__).parents[2] / "docs/concepts/incidents.md"
_BEGIN, _END = "<!-- written by `make incidents` -->\n\n", "\n<!-- end -->"
_HEAD = ("incident", "what is done", "verdict", "seconds without a step", "failures", "charged")


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
            "; ".join(complaints) or "passed",
            seen.seconds_without_step,
            len(seen.status.failures),
            seen.status.restarts,
        )

    def text(self) -> str:
        """Return the line of the table."""
        return _line(
            (
                self.incident.what,
                self.incident.done,
                self.verdict,
                f"{self.seconds_without_step:.0f}",
                str(self.failures),
                str(self.charged),
            )
        )


ROWS: Final = pytest.StashKey[list[Row]]()


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD)), *(row.text() for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(rows: Sequence[Row]) -> bool:
    """Write the table to the page if each incident passed."""
    if [row.incident.name for row in rows if row.verdict == "passed"] != [
        i.name for i in INCIDENTS
    ]:
        return False
    page = PAGE.read_text()
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    PAGE.write_text(f"{page[:begin]}{table(rows)}\n{page[end:]}")
    return True

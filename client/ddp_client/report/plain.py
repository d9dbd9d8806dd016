"""A report as Markdown, and as plain values for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from ddp_client.report.model import Report
from ddp_client.report.tables import clock, headline, sections

_MEANINGFUL: Final = str.maketrans(
    {char: f"\\{char}" for char in "\\`*_[]#|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def as_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain values: times as text in UTC, None for unknown."""
    plain: dict[str, Any] = _plain(asdict(report))
    return plain


def as_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [
        f"# Report of job {_text(report.name)}",
        "",
        f"Namespace {_text(report.namespace)}, **{report.phase}**"
        + (f" ({_text(report.reason)})" if report.reason else "")
        + (f": {_text(report.message)}" if report.message else ""),
        "",
        *_table(("fact", "value"), [(name, value) for name, value in headline(report)]),
    ]
    if report.remedies:
        lines += ["## What to do", "", *(f"- {_text(remedy)}" for remedy in report.remedies), ""]
    for section in sections(report):
        lines += [f"## {section.title}", ""]
        if section.note:
            lines += [section.note, ""]
        lines += _table(section.heading, section.rows)
    for log in report.logs:
        # Indented lines are code: nothing in them is read as Markdown or HTML.
        lines += [f"## Last log lines of pod {_text(log.pod)}", ""]
        lines += [*(f"    {line}" for line in log.lines), ""]
    if report.gaps:
        lines += ["## What is missing", "", *(f"- {_text(gap)}" for gap in report.gaps), ""]
    lines.append(f"Made at {clock(report.made_at)} UTC by ddp-operator {report.version}.")
    return "\n".join(lines) + "\n"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        _row(heading),
        _row(["---"] * len(heading)),
        *(_row([_text(cell) for cell in row]) for row in rows),
        "",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(words: str) -> str:
    """Escape Markdown in text of pods and users."""
    return words.translate(_MEANINGFUL)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

"""A report as one HTML file: no script, nothing from the network, all text escaped."""

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_operator.report import pictures
from ddp_operator.report.model import Report
from ddp_operator.report.tables import clock, headline, sections

LOADER: Final = PackageLoader("ddp_operator.report", "templates")
_TEMPLATES: Final = Environment(
    loader=LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def as_html(report: Report) -> str:
    """Write the page."""
    return _TEMPLATES.get_template("report.html.j2").render(filling(report))


def filling(report: Report) -> dict[str, Any]:
    """What the page's template asks for; drawing the pictures takes its time."""
    return {
        "report": report,
        "headline": headline(report),
        "sections": sections(report),
        # Of what goes into the drawings, matplotlib has escaped the text.
        "pictures": {name: Markup(svg) for name, svg in pictures.draw(report).items()},
        "made_at": clock(report.made_at),
        "created": clock(report.created),
        "ended": clock(report.ended, ""),
    }

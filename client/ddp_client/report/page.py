"""A report as one HTML file: no script, nothing from the network, all text escaped."""

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_client.report import pictures
from ddp_client.report.model import Report
from ddp_client.report.tables import clock, headline, sections

LOADER: Final = PackageLoader("ddp_client.report", "templates")
TEMPLATES: Final = Environment(
    loader=LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def as_html(report: Report) -> str:
    """Return the page."""
    return TEMPLATES.get_template("report.html.j2").render(filling(report))


def filling(report: Report) -> dict[str, Any]:
    """Return the values for the page's template; slow, because it draws the pictures."""
    return {
        "report": report,
        "headline": headline(report),
        "sections": sections(report),
        # matplotlib has escaped the text in the drawings.
        "pictures": {name: Markup(svg) for name, svg in pictures.draw(report).items()},
        "made_at": clock(report.made_at),
        "created": clock(report.created),
        "ended": clock(report.ended, ""),
    }

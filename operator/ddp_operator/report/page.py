"""A report as one HTML file: no script, nothing from the network, all text escaped."""

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_operator.report import pictures
from ddp_operator.report.model import Report
from ddp_operator.report.tables import clock, headline, sections

_TEMPLATES: Final = Environment(
    loader=PackageLoader("ddp_operator.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def as_html(report: Report) -> str:
    """Write the page."""
    # Of what goes into the drawings, matplotlib has escaped the text.
    drawn = {name: Markup(svg) for name, svg in pictures.draw(report).items()}
    return _TEMPLATES.get_template("report.html.j2").render(
        report=report,
        headline=headline(report),
        sections=sections(report),
        pictures=drawn,
        made_at=clock(report.made_at),
        created=clock(report.created),
        ended=clock(report.ended, ""),
    )

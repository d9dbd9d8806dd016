"""A report of one job: `build` it from facts, then write it as HTML, as Markdown, or as a dict.

Only HTML needs more than the operator does: matplotlib and jinja2, `ddp-client[report]`.
"""

from ddp_client.report.build import build
from ddp_client.report.facts import Facts
from ddp_client.report.model import Report
from ddp_client.report.plain import as_dict, as_markdown

__all__ = ["Facts", "Report", "as_dict", "as_html", "as_markdown", "build"]


def as_html(report: Report) -> str:
    """Return one HTML file with all pictures, which loads nothing from the network.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
    """
    from ddp_client.report.page import as_html as write  # noqa: PLC0415 - optional dependencies

    return write(report)

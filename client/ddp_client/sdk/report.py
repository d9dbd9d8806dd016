"""A report about a job, for notebooks and files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ddp_client import report as reports
from ddp_client.report import Facts, Report
from ddp_client.sdk.errors import ClientError

_SUFFIXES: Final = (".html", ".md", ".json")


class JobReport:
    """A report about a job until now; `data` has everything as typed values."""

    def __init__(
        self, facts: Facts, prices: Mapping[str, float] | None, price_per_pod: float | None
    ) -> None:
        self.data: Report = reports.build(facts, prices=prices, price_per_pod=price_per_pod)

    def html(self) -> str:
        """Return an HTML page with all pictures, which loads nothing from the network.

        Raises:
            ClientError: packages for pictures are not installed.
        """
        try:
            return reports.as_html(self.data)
        except ImportError:
            raise ClientError(
                "pictures need packages that are not installed: pip install "
                "'ddp-client[report]', or use markdown()"
            ) from None

    def markdown(self) -> str:
        """Return Markdown without pictures."""
        return reports.as_markdown(self.data)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return reports.as_dict(self.data)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file; the suffix selects the format: .html, .md or .json."""
        file = Path(path)
        if file.suffix not in _SUFFIXES:
            raise ClientError(f"{file}: use one of the suffixes {', '.join(_SUFFIXES)}")
        if file.suffix == ".html":
            text = self.html()
        else:
            text = self.markdown() if file.suffix == ".md" else json.dumps(self.as_dict(), indent=2)
        file.write_text(text)
        return file

    def _repr_markdown_(self) -> str:
        """Return the Markdown that a notebook shows."""
        return self.markdown()

"""A report of a job, as a notebook shows it and as files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ddp_operator import report as reports
from ddp_operator.report import Facts, Report
from ddp_operator.sdk.errors import ClientError

_SUFFIXES: Final = (".html", ".md", ".json")


class JobReport:
    """What became of a job until now; `data` has all of it as typed values."""

    def __init__(self, facts: Facts, prices: Mapping[str, float] | None) -> None:
        self.data: Report = reports.build(facts, prices=prices)

    def html(self) -> str:
        """One page with all pictures in it, which needs no network.

        Raises:
            ClientError: what draws pictures is not installed.
        """
        try:
            return reports.as_html(self.data)
        except ImportError:
            raise ClientError(
                "pictures need packages that are not installed: pip install "
                "'ddp-operator[report]', or take markdown()"
            ) from None

    def markdown(self) -> str:
        """The same without pictures, for an issue or a chat."""
        return reports.as_markdown(self.data)

    def as_dict(self) -> dict[str, Any]:
        """The same with plain values, for JSON."""
        return reports.as_dict(self.data)

    def save(self, path: str | Path) -> Path:
        """Write it into a file; its name says how: .html, .md or .json."""
        file = Path(path)
        if file.suffix not in _SUFFIXES:
            raise ClientError(f"{file}: call it by one of {', '.join(_SUFFIXES)}")
        if file.suffix == ".html":
            text = self.html()
        else:
            text = self.markdown() if file.suffix == ".md" else json.dumps(self.as_dict(), indent=2)
        file.write_text(text)
        return file

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

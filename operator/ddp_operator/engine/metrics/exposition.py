"""Prometheus' text (exposition format 0.0.4)."""

from collections.abc import Iterable
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


def head(name: str, kind: str, help_text: str) -> Iterable[str]:
    """Return the lines above the samples of a metric."""
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def line(name: str, of: Labels, value: float) -> str:
    """Return one sample."""
    return f"{name}{{{labels(of)}}} {value}" if of else f"{name} {value}"


def labels(of: Labels) -> str:
    """Return the text between the braces of a sample."""
    return ",".join(f'{label}="{_escaped(text)}"' for label, text in of)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

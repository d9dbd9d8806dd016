"""Jobs of other projects, under their own controllers and converted."""

from pathlib import Path


def probe_text() -> str:
    """The script that runs as every rank."""
    return (Path(__file__).parent / "probe.py").read_text()

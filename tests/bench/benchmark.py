"""The common parts of all benchmarks, and how they are found.

A benchmark is a module in the folder `operator` or `trainer`. The first line of its docstring says
what it measures, and it has a function `measure(Settings) -> Outcome`. A new one needs no
registration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

_FOLDERS = ("operator", "trainer")


class BenchmarkError(RuntimeError):
    """The wrong thing was measured; the figures mean nothing."""


@dataclass(frozen=True)
class Settings:
    """The options of a benchmark."""

    repeat: int
    """How often to measure each thing; what is compared is measured in turns."""
    scratch: Path
    """An empty folder of its own, gone afterwards."""
    state_mb: int | None = None
    """Size of the state that benchmarks with a `STATE_MB` have; None: that."""


@dataclass(frozen=True)
class Outcome:
    """The result of a benchmark."""

    text: str
    """A table for people, in lines of at most 80 characters: what was run on what, how often, and
    each figure with its spread. Rows of Markdown, for a page, may be longer."""
    data: Any = field(default_factory=dict)
    """The same and more, for `as_json`."""


def names() -> list[str]:
    """Return the names of all benchmarks, such as ``operator-creation``."""
    here = Path(__file__).parent
    return sorted(
        f"{folder}-{module.stem.replace('_', '-')}"
        for folder in _FOLDERS
        for module in (here / folder).glob("[a-z]*.py")
    )


def find(word: str) -> list[str]:
    """Return the benchmarks of a name, or of its second part: `peers` for `operator-peers`."""
    return [name for name in names() if word in (name, name.partition("-")[2])]


def measure(name: str, settings: Settings) -> Outcome:
    """Run one benchmark.

    Only now is its module imported: those of the trainer bring torch along.

    Raises:
        BenchmarkError: the figures would mean nothing.
    """
    folder, _, stem = name.partition("-")
    module = import_module(f"tests.bench.{folder}.{stem.replace('-', '_')}")
    if settings.state_mb is not None and not hasattr(module, "STATE_MB"):
        raise BenchmarkError("its state has a fixed size: run it without --state-mb")
    outcome: Outcome = module.measure(settings)
    return outcome


def as_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences as JSON data."""
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value


def _key(key: Any) -> str:
    return " ".join(key) if isinstance(key, tuple) else str(key)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return median, least and most: `1.2 (1.1-1.5)`."""
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"

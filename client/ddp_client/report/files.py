"""Facts from local files: a trainer's metrics, and the record of a local run."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ddp_client.local.run.record import FILE_NAME
from ddp_client.report.facts import EventFacts, Facts, PodFacts
from ddp_client.report.history import History, read_bytes

METRICS: Final = "metrics.jsonl"
_MAX_METRICS: Final = 64 * 1024 * 1024
_MAX_RUN: Final = 64 * 1024 * 1024


class UnreadableError(Exception):
    """A file cannot be used for a report; the message names it and the remedy."""


def read_metrics(path: Path) -> History:
    """Read the newest part of a metrics.jsonl, or of the one in a checkpoint directory.

    Raises:
        UnreadableError: there is none.
    """
    file = path / METRICS if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            begin = stream.seek(max(size - _MAX_METRICS, 0))
            return read_bytes(stream.read(_MAX_METRICS), is_cut=begin > 0)
    except OSError as error:
        raise UnreadableError(
            f"{file}: {error.strerror}: give a {METRICS}, or the checkpoint directory with it"
        ) from None


def read_run(directory: Path, *, history: History | None = None) -> Facts:
    """Read the record that `python -m ddp_client.local --workdir DIRECTORY` wrote.

    Raises:
        UnreadableError: there is no such record.
    """
    file = directory / FILE_NAME
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_RUN + 1)
        run: Any = json.loads(content) if len(content) <= _MAX_RUN else None
        newest = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        metrics = history if history is not None else _metrics_of(directory)
        return Facts.of(
            run["job"],
            now=newest,
            pods=map(PodFacts.read, run["pods"]),
            events=map(EventFacts.read, run["events"]),
            history=metrics,
            gaps=() if metrics else (f"no {METRICS} is below {directory / 'volumes'}",),
        )
    except OSError as error:
        what = error.strerror
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        what = "not a complete record of a local run"
    raise UnreadableError(
        f"{file}: {what}: give the --workdir of a finished `python -m ddp_client.local`"
    )


def _metrics_of(directory: Path) -> History:
    files = sorted(_files(directory), reverse=True)
    return read_metrics(files[0][1]) if files else History()


def _files(directory: Path) -> Iterator[tuple[float, Path]]:
    """Yield the volumes' metrics files with their modification times."""
    for file in (directory / "volumes").glob(f"**/{METRICS}"):
        with suppress(OSError):
            yield file.stat().st_mtime, file

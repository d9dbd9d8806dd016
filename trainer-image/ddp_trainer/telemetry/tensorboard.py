"""Writes the metrics of `metrics.jsonl` as TensorBoard event files, beside the checkpoints."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.system.logs import DistinctErrors
from ddp_trainer.telemetry.history import FILE_NAME, History, Record

FOLDER = "tensorboard"
"""Folder within the checkpoint directory."""

_logger = logging.getLogger(__name__)


def check(directory: Path | None) -> None:
    """Check that event files can be written.

    Raises:
        ConfigurationError: there is no checkpoint directory, or tensorboard is not installed.
    """
    if directory is None:
        raise ConfigurationError(
            "--tensorboard: there is no DDP_CHECKPOINT_DIR to write beside; set spec.checkpoint"
        )
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            "--tensorboard needs tensorboard: install ddp-trainer[tensorboard] in the image"
        )


def records(directory: Path | None, event_files: bool) -> list[Record]:
    """Return the records of a training beside its checkpoints; without those, none."""
    if directory is None:
        return []
    history = History(directory / FILE_NAME)
    return [history, EventFiles(directory / FOLDER)] if event_files else [history]


class EventFiles:
    """A `Record` of numbers. If a write fails, it logs that; training continues.

    The writer's own thread writes the events. So a killed process may lose the last events, unlike
    lines of `metrics.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._told = -1
        """The newest recorded step; -1: unknown, for events of an earlier process."""
        self._errors = DistinctErrors(_logger, f"cannot write {folder}")

    def rewind(self, step: int) -> None:
        """Hide events of steps after `step`; training continues there."""
        if self._writer is None or self._told > step:
            self._survive(lambda: self._begin(step + 1))
            self._told = step

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Record the numbers of a step; other values are ignored."""

        def write() -> None:
            if self._writer is None:
                self._begin(step)
            for name, value in _numbers(kind, values):
                self._writer.add_scalar(name, value, step)

        self._survive(write)
        self._told = max(self._told, step)

    def close(self) -> None:
        """Write all events out. The file stays open: TensorBoard shows each new file separately."""
        if self._writer is not None:
            self._survive(self._writer.flush)

    def _begin(self, purge_step: int) -> None:
        """Begin a file that replaces the events of other files from `purge_step` on."""
        if self._writer is not None:
            self._writer.close()
        # The import takes a second: do it only if TensorBoard is enabled.
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(self._folder), purge_step=purge_step)

    def _survive(self, action: Callable[[], None]) -> None:
        if not self._errors.attempt(action):
            self._writer = None


def _numbers(kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):  # the script's own metrics
            yield from _numbers("", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            yield (f"{kind}/{name}" if kind else name), value

"""What `metrics.jsonl` has, as event files for TensorBoard, beside the checkpoints."""

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

FOLDER = "tensorboard"
"""In the directory of the checkpoints."""

_logger = logging.getLogger(__name__)


def check(directory: Path | None) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigurationError: there is nowhere to write, or nothing to write with.
    """
    if directory is None:
        raise ConfigurationError(
            "--tensorboard: there is no DDP_CHECKPOINT_DIR to write beside; set spec.checkpoint"
        )
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            "--tensorboard needs tensorboard: install ddp-trainer[tensorboard] in the image"
        )


class EventFiles:
    """A `Record` of numbers. What cannot be written is logged, and training goes on.

    Events are written by a thread of the writer's, so that a process which is killed may take the
    last ones with it, unlike lines of `metrics.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._told = -1
        """The newest step of which anything was told; of a predecessor's, nothing is known."""
        self._errors = DistinctErrors(_logger, f"cannot write {folder}")

    def rewind(self, step: int) -> None:
        """Training goes on at `step`: what was told of later ones is not drawn any more."""
        if self._writer is None or self._told > step:
            self._survive(lambda: self._begin(step + 1))
            self._told = step

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Tell of a step: what is no number is not for drawing."""

        def write() -> None:
            if self._writer is None:
                self._begin(step)
            for name, value in _numbers(kind, values):
                self._writer.add_scalar(name, value, step)

        self._survive(write)
        self._told = max(self._told, step)

    def close(self) -> None:
        """What was told is written; the file stays open, for each new one is shown for itself."""
        if self._writer is not None:
            self._survive(self._writer.flush)

    def _begin(self, purge_step: int) -> None:
        """A file that takes the place of what others have of this step and of later ones."""
        if self._writer is not None:
            self._writer.close()
        # It takes a second to import, which only those wait for who want it.
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(self._folder), purge_step=purge_step)

    def _survive(self, action: Callable[[], None]) -> None:
        if not self._errors.attempt(action):
            self._writer = None


def _numbers(kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):  # a script's own, which have names of their own
            yield from _numbers("", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            yield (f"{kind}/{name}" if kind else name), value

"""The length of a training, as far as the script has specified it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from ddp_trainer.data.loaders import is_stream
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Position
from ddp_trainer.settings.batch import Batch


@dataclass(kw_only=True)
class TrainingLength:
    """Epochs, their batches, and the limit of steps."""

    shards: int
    """Logical shards of a step; by default the number of ranks."""
    epochs: int | None = None
    max_steps: int = 0
    """0: no limit beside the epochs."""
    loading: Loading | Stream | None = None
    accumulate: int = 1
    """Batches of a step."""
    samples_a_place: int = 1
    """Samples that a position counts as one; the batch size where each rank reads a stream."""
    _loader: DataLoader[Any] | None = None

    def is_of(self, loader: DataLoader[Any], accumulate: int) -> bool:
        """Return whether epochs use this loader and accumulate so many batches."""
        return self._loader is loader and self.accumulate == accumulate

    def choose(self, loader: DataLoader[Any], loading: Loading | Stream, accumulate: int) -> None:
        """Set the batches of an epoch; `accumulate` of them make a step."""
        self._loader, self.loading, self.accumulate = loader, loading, accumulate
        self.samples_a_place = loading.samples_a_place

    def is_at_limit(self, position: Position) -> bool:
        """Return whether the limit of steps is reached, even within an epoch."""
        return 0 < self.max_steps <= position.step

    def total_steps(self, position: Position) -> int | None:
        """Return the steps of the whole training, including those before `position`.

        Those may have been taken with another world size. None: unknown.
        """
        if not (isinstance(self.loading, Loading) and self.loading.is_even):
            return self.max_steps or None
        total = position.step
        epochs = self.epochs if self.epochs is not None else position.epoch + 1
        if position.epoch < epochs:
            whole = epochs - position.epoch - 1
            total += self._steps_left(self.loading, position.samples)
            total += whole * self._steps_left(self.loading, 0)
        return max(position.step, min(total, self.max_steps)) if self.max_steps else total

    def _steps_left(self, loading: Loading, samples: int) -> int:
        batches = loading.batches_left(samples, shards=self.shards)
        return math.ceil(batches / self.accumulate)


def steps_per_epoch(
    loader: DataLoader[Any], *, accumulate: int = 1, ranks: int | None = None
) -> int:
    """Return how many steps an epoch of `job.batches(loader)` has.

    Use it for a scheduler that is created before `join`: `len(loader)` counts the batches of the
    whole dataset, which the ranks divide. `accumulate`: as in `job.batches`. `ranks`: number of
    ranks that share a step, by default those of the job; with `logical_shards`, pass that number.

    Raises:
        ConfigurationError: the loader reads a stream of unknown length, or its samples cannot be
            divided among ranks.
    """
    if is_stream(loader):
        raise ConfigurationError(
            "steps_per_epoch() got a loader of an IterableDataset, which has no known length: give "
            "the scheduler a number of steps, and job.epochs() the same number as max_steps"
        )
    shards = ranks or Batch.from_env(os.environ).shards or int(os.environ.get("WORLD_SIZE", "1"))
    batches = Loading(loader, seed=0).batches_left(0, shards=shards)
    return math.ceil(batches / accumulate)

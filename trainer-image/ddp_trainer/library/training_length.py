"""How long a script trains, as far as it has said."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from ddp_trainer.data.loading import Loading, is_stream
from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Position
from ddp_trainer.settings.batch import Batch


@dataclass(kw_only=True)
class TrainingLength:
    """Epochs, what they consist of, and when all of it ends."""

    shards: int
    """Of a step: as many as there are ranks, if nothing else was asked for."""
    epochs: int | None = None
    max_steps: int = 0
    """0: as many as the epochs have."""
    loading: Loading | Stream | None = None
    accumulate: int = 1
    """Batches of a step."""
    _loader: DataLoader[Any] | None = None

    def is_of(self, loader: DataLoader[Any], accumulate: int) -> bool:
        """Whether an epoch consists of this."""
        return self._loader is loader and self.accumulate == accumulate

    def choose(self, loader: DataLoader[Any], loading: Loading | Stream, accumulate: int) -> None:
        """An epoch consists of what the loader loads, in steps of so many batches."""
        self._loader, self.loading, self.accumulate = loader, loading, accumulate

    def is_at_limit(self, position: Position) -> bool:
        """Whether no more steps are wanted, even if the epoch has some."""
        return 0 < self.max_steps <= position.step

    def total_steps(self, position: Position) -> int | None:
        """Steps of the whole training, of which those before `position` are done.

        They may have been done with another world size. None: nobody knows.
        """
        if not isinstance(self.loading, Loading):
            return self.max_steps or None
        total = position.step
        epochs = self.epochs if self.epochs is not None else position.epoch + 1
        if position.epoch < epochs:
            whole = epochs - position.epoch - 1
            total += self._steps_left(self.loading, position.samples)
            total += whole * self._steps_left(self.loading, 0)
        return max(position.step, min(total, self.max_steps)) if self.max_steps else total

    @property
    def samples_a_place(self) -> int:
        """Samples that count as one; a batch does, where each rank reads a stream of its own."""
        return self.loading.samples_a_place if self.loading is not None else 1

    def _steps_left(self, loading: Loading, samples: int) -> int:
        batches = loading.batches_left(samples, shards=self.shards)
        return math.ceil(batches / self.accumulate)


def steps_per_epoch(
    loader: DataLoader[Any], *, accumulate: int = 1, ranks: int | None = None
) -> int:
    """Return how many steps an epoch of `job.batches(loader)` has.

    For a scheduler that is made before `join`: `len(loader)` counts the batches of the whole
    dataset, which all ranks share out. `accumulate`: as `job.batches` gets it. `ranks`: whose
    batches make a step, by default those of the job; with `logical_shards` as many as those.

    Raises:
        ConfigurationError: the loader reads a stream, whose length is not known, or cannot be
            shared out.
    """
    if is_stream(loader):
        raise ConfigurationError(
            "steps_per_epoch() got a loader of an IterableDataset, whose length nobody knows: give "
            "the scheduler a number of steps, and job.epochs() the same as max_steps"
        )
    shards = ranks or Batch.from_env(os.environ).shards or int(os.environ.get("WORLD_SIZE", "1"))
    batches = Loading(loader, seed=0).batches_left(0, shards=shards)
    return math.ceil(batches / accumulate)

"""The position of a run, places in its script, and the order of its samples."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.batch import Batch

_logger = logging.getLogger(__name__)

Asked = tuple[int, int, int]
"""A place in the script at which ranks asked each other for a sum."""
BEFORE_TRAINING: Asked = (0, 0, 0)


def before_epoch(epoch: int) -> Asked:
    """Return the place before the first batch of an epoch."""
    return 1, epoch, 0


def after_step(step: int, *, epoch: int) -> Asked:
    """Return the place outside of the loop over batches, after a step."""
    return 2, step, epoch


@dataclass(kw_only=True)
class Position:
    """The position of a run; always at a boundary between optimizer steps."""

    step: int = 0
    """Steps completed since the beginning of training."""
    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all ranks together have consumed, without padding. Where each rank
    reads its own stream: batches."""
    turns: int = 0
    """Completed turns of the next step, where several optimizers step one after the other."""
    is_at_end: bool = False
    """True after the last step of this epoch; an evaluation may follow."""
    skipped: int = 0
    """Steps in a row, up to this position, that were counted without being applied."""
    skipped_in_all: int = 0
    """Such steps since the beginning of training."""

    def end(self, *, epoch_length: int) -> None:
        """Note that this epoch has no more steps."""
        self.samples, self.is_at_end = epoch_length, True

    def before_evaluation(self, *, epoch_length: int) -> Position:
        """Return this position; at the start of an epoch, return the end of the previous one.

        A run that resumes from there repeats the evaluation if needed.
        """
        if self.epoch == 0 or self.samples > 0 or self.turns > 0 or self.is_at_end:
            return self
        ended = replace(self, epoch=self.epoch - 1)
        ended.end(epoch_length=epoch_length)
        return ended

    def next_epoch(self) -> None:
        """Move to the next epoch."""
        self.epoch += 1
        self.samples, self.is_at_end = 0, False


@dataclass(frozen=True, kw_only=True)
class Order:
    """The values that determine the order of samples and the random numbers."""

    seed: int
    samples: int = 0
    """Samples in the training set; 0: unknown."""
    readers: int = 0
    """Ranks that each read their own stream; 0: ranks divide samples."""
    shards: int = 0
    """Logical shards of a step; 0: the number of ranks."""

    def of_samples(self, samples: int) -> Order:
        """Return the order of a training set that ranks divide; see `TrainState.choose_samples`."""
        if self.samples not in (0, samples) or self.readers > 0:
            had = f"{self.samples} samples" if self.samples else "an unknown number"
            raise ConfigurationError(
                f"the training set has {samples} samples, but had {had} when this run began: "
                "to train from the beginning, choose another checkpoint directory"
            )
        return replace(self, samples=samples, readers=0)

    def of_streams(self, readers: int, *, begins_epoch: bool) -> Order:
        """Return the order of the ranks' own streams; see `TrainState.choose_streams`."""
        if self.samples > 0 or (self.readers not in (0, readers) and not begins_epoch):
            what = f"{self.readers} streams" if self.readers else f"{self.samples} samples"
            raise ConfigurationError(
                f"this run has trained on a part of {what}, which cannot be mapped to {readers} "
                "streams: continue with as many ranks as before; or, to train from the beginning, "
                "choose another checkpoint directory"
            )
        return replace(self, samples=0, readers=readers)

    def with_shards(self, batch: Batch) -> Order:
        """Return this order, in which a run has begun, with the shards of a step."""
        shards = batch.shards_of(self.shards)
        if shards not in (0, batch.shards):
            _logger.info(
                "a step has the batches of %d ranks, as when this training began, not of %d",
                shards,
                batch.shards,
            )
        return replace(self, shards=shards)


@dataclass(frozen=True, kw_only=True)
class Bookmarks:
    """Positions of the ranks' streams, as each stream reported it."""

    epoch: int
    batches: int
    """Batches that each rank had read in the epoch."""
    states: list[Any]
    """States of the streams by rank."""

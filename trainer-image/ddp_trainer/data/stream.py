"""A script's DataLoader of an IterableDataset: each rank reads its own stream.

A stream cannot start anywhere. To continue within an epoch, a rank reads the stream again up to
that point: from the newest bookmark if the stream supports bookmarks, otherwise from the beginning.
The length is unknown, too. So each rank reads one step ahead and announces the end in time. The
epoch ends for all ranks with the shortest stream.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.batches import Original
from ddp_trainer.data.loaders import end_workers_with_rank
from ddp_trainer.data.sampler import Share
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Bookmarks
from ddp_trainer.run.savable import pack
from ddp_trainer.run.seeds import seed_by_name
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.buffers import load

_LOG_SECONDS = 10.0
"""Interval of log lines while a stream is read again."""

_logger = logging.getLogger(__name__)


class Stream:
    """The stream of one rank, read batch by batch from the beginning of each epoch.

    It must give the same batches each time that it is read in the same epoch.
    """

    def __init__(self, loader: DataLoader[Any], run: TrainState, *, seed: int) -> None:
        """`run`: stores the bookmarks."""
        self._loader = loader
        self._run = run
        self._rank = 0
        self._seed = seed
        self.samples_a_place = loader.batch_size or 1
        """Batches are counted."""
        self._teller = _teller(loader)
        self._epoch = -1
        self._batches: Iterator[Any] = iter(())
        self._kept: deque[Original] = deque()
        """Batches that were read but not yet trained on."""
        self._read = 0
        """Number of batches read in this epoch, including those kept."""
        self._given = -1
        """Number of the last batch that the script has received."""
        self._has_ended = False
        self._mark: Any = None
        """State of the stream at the end of the current step, before reading ahead."""
        self._marked = 0
        """Number of batches read at that state."""
        end_workers_with_rank(loader)

    def length_of(self, epoch: int) -> int:
        """Return 0: the length of an epoch is unknown."""
        del epoch
        return 0

    def rest(
        self, epoch: int, samples: int, assignment: ShardAssignment, *, accumulate: int = 1
    ) -> StreamRest:
        """Return the rest of the epoch after `samples` batches of all ranks.

        `accumulate`: batches of each rank per step.
        """
        if assignment.rank != self._rank:  # another rank has another stream
            self._rank, self._epoch = assignment.rank, -1
        self._go_to(epoch, samples // assignment.size)
        return StreamRest(
            self, samples // assignment.size, ranks=assignment.size, accumulate=accumulate
        )

    def bookmark(self, group: Group) -> None:
        """Store the positions of all ranks' streams after this step; a collective.

        Raises:
            ConfigurationError: the state of a stream cannot be saved.
        """
        marks = group.gather(self._packed_mark())
        if all(marks):
            states = [load(mark) for mark in marks]
            self._run.bookmarks = Bookmarks(epoch=self._epoch, batches=self._marked, states=states)

    def _packed_mark(self) -> bytes:
        if self._teller is None:
            return b""
        return pack(self._mark, of=f"the {type(self._teller).__name__} that is read")

    def begin_step(self, first: int, count: int) -> bool:
        """Read `count` batches from number `first` on; return True if another step follows.

        Raises:
            ConfigurationError: the stream has ended before.
        """
        while self._kept and self._read - len(self._kept) < first:
            self._kept.popleft()
        if not self._read_to(first + count):
            raise ConfigurationError(
                f"the stream of rank {self._rank} ended after {self._read} batches of epoch "
                f"{self._epoch}: give each rank at least {count} in each epoch, and the same "
                "ones each time"
            )
        # If the stream was already read further, its state is that of a later position. Then keep
        # the earlier mark.
        if self._teller is not None and self._read == first + count:
            self._mark, self._marked = copy.deepcopy(self._teller.state_dict()), self._read
        return self._read_to(first + 2 * count)

    def batch(self, number: int) -> Any:
        """Return a batch of the current step, as it was read.

        If the script has changed it, the stream is read again.
        """
        if self._given >= number and not self._original(number).is_unchanged:
            epoch, read = self._epoch, self._read
            self._begin(epoch, number)
            self._skip_to(number)
            self._read_to(read)
        self._given = max(self._given, number)
        return self._original(number).copy()

    def _original(self, number: int) -> Original:
        return self._kept[number - self._read + len(self._kept)]

    def _go_to(self, epoch: int, batches: int) -> None:
        first_kept = self._read - len(self._kept)
        if self._epoch != epoch or batches < first_kept:
            self._begin(epoch, batches)
        self._skip_to(batches)

    def _skip_to(self, batches: int) -> None:
        began = said = time.monotonic()
        while self._read < batches and self._read_to(self._read + 1):
            self._kept.clear()
            if time.monotonic() - said > _LOG_SECONDS:
                said = time.monotonic()
                _logger.info(
                    "reading the stream again: at batch %d of %d after %.0f s",
                    self._read,
                    batches,
                    said - began,
                )

    def _begin(self, epoch: int, batches: int) -> None:
        self._epoch, self._read, self._has_ended = epoch, 0, False
        self._given = -1
        self._kept.clear()
        self._batches = iter(())  # ends the old workers before new ones start
        dataset: Any = self._loader.dataset
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(epoch)
        goes_on = self._teller is self._loader
        if goes_on:
            self._teller.load_state_dict({})  # resets the loader to its beginning
        bookmarks = self._run.bookmarks
        if (
            self._teller is not None
            and bookmarks is not None
            and bookmarks.epoch == epoch
            and bookmarks.batches <= batches
        ):
            self._teller.load_state_dict(copy.deepcopy(bookmarks.states[self._rank]))
            self._read = bookmarks.batches
        self._seed_for(self._read)
        self._batches = iter(self._loader)

    def _read_to(self, batches: int) -> bool:
        """Read until there are `batches` of them; return False if the stream ends before."""
        while self._read < batches and not self._has_ended:
            self._seed_for(self._read)
            try:
                self._kept.append(Original(next(self._batches)))
                self._read += 1
            except StopIteration:
                self._has_ended = True
        return self._read >= batches

    def _seed_for(self, batch: int) -> None:
        seed_by_name(self._seed, self._rank, self._epoch, batch, "stream")


class StreamRest:
    """The batches of one rank up to the end of an epoch, which is not known in advance."""

    def __init__(self, stream: Stream, begin: int, *, ranks: int, accumulate: int) -> None:
        self._stream = stream
        self._next = begin
        self._ranks = ranks
        self._accumulate = accumulate
        self.is_at_end = False
        """Always false: no rank knows the end by itself."""
        self.has_end = False
        """True: nothing follows the last result of `next_step`."""

    def next_step(self) -> Share:
        """Return the batch numbers of the next step; each batch counts as a sample."""
        count = self._accumulate
        self.has_end = not self._stream.begin_step(self._next, count)
        self._next += count
        return Share(
            samples=count * self._ranks,
            read=[[number] for number in range(self._next - count, self._next)],
            counts=[1] * count,
        )

    def batch(self, share: Share, number: int) -> Any:
        """Return a batch of the step, by its number in it, as it was read."""
        return self._stream.batch(share.read[number][0])


def _teller(loader: DataLoader[Any]) -> Any:
    """Return the object that can save and load the stream's position; None: there is none."""
    # With workers, this process only has a copy of the dataset, at its beginning.
    candidates: list[Any] = [loader, *([] if loader.num_workers > 0 else [loader.dataset])]
    for candidate in candidates:
        if all(
            callable(getattr(candidate, name, None)) for name in ("state_dict", "load_state_dict")
        ):
            return candidate
    return None

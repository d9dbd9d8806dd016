"""Reads a script's DataLoader from any position: the same samples in the same order after a loss.

Each sample has its own random numbers, see `seeding`. So augmentation depends neither on the worker
nor on earlier samples. A dataset that reads whole batches (`__getitems__`) has random numbers for
each batch.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import tee
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Subset

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data import fingerprint
from ddp_trainer.data.batches import Rest, keys_of
from ddp_trainer.data.loaders import begin_worker, check_iteration, is_stream
from ddp_trainer.data.sampler import shares
from ddp_trainer.data.samplers import Epoch, Key, order_of
from ddp_trainer.data.seeding import seeded
from ddp_trainer.exit_codes import ConfigurationError


class Loading:
    """Reads the samples of a DataLoader in the trainer's order."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        """Check the loader and prepare to read it.

        Raises:
            ConfigurationError: it cannot start in the middle of an epoch.
        """
        if is_stream(loader):
            raise ConfigurationError(
                "the loader reads an IterableDataset, which cannot be split among ranks: give "
                "job.share() a loader of a dataset with __len__ and __getitem__"
            )
        check_iteration(loader)
        if loader.batch_sampler is None:
            raise ConfigurationError(
                "the loader has no batch_size, so the samples of a batch are not known: give "
                "DataLoader a batch_size or a batch_sampler"
            )
        self._loader = loader
        self._epochs = order_of(loader, seed=seed)
        self.samples = self._epochs.length
        """Samples of the first epoch; if the loader has a batch sampler, its batches."""
        self.batch_size = loader.batch_size or 1
        self.samples_a_place = self._epochs.samples_a_place
        """Number of samples that count as one."""
        self._begun: tuple[int, Epoch] | None = None
        """The newest epoch and its number."""
        self._places = _Places()
        self._batches = seeded(loader, seed=seed)
        self._reader: DataLoader[Any] | None = None
        if loader.num_workers > 0 or loader.pin_memory:
            self._reader = self._read(
                self._batches,
                collate_fn=_unchanged,
                batch_sampler=self._places,
                persistent_workers=loader.persistent_workers,
            )

    @cached_property
    def fingerprint(self) -> int:
        """63 bits of what is known of the samples without reading files: equal on all ranks."""
        known = hashlib.blake2b(repr((self.samples, self.batch_size)).encode(), digest_size=8)
        known.update(self._epochs.fingerprint)
        known.update(fingerprint.certain(self._loader.dataset))
        return int.from_bytes(known.digest()) >> 1

    def fingerprint_of_batch(self) -> int:
        """Return 63 bits of the first samples that all ranks share. If another rank's differ, its
        data do, or samples change with each reading. 0: they are not read here.
        """
        if self._loader.num_workers > 0:  # workers may inherit what this process has opened
            return 0
        batch = self.whole_batch(0, 0, rank=0, world_size=1)
        return int.from_bytes(fingerprint.of_batch(batch)) >> 1

    @property
    def is_even(self) -> bool:
        """Return whether all epochs are known to have the length of the first one."""
        return self._epochs.is_even

    def length_of(self, epoch: int) -> int:
        """Return the samples of an epoch, or the batches of a batch sampler."""
        return self._begin(epoch).length

    def batches_left(self, samples: int, *, shards: int) -> int:
        """Return the remaining batches of each shard after `samples` of the first epoch."""
        left = self._samples_left(self.samples - samples, shards=shards)
        return math.ceil(left / self.batch_size)

    def _samples_left(self, samples: int, *, shards: int) -> int:
        """Return the samples of each shard, including padding, if `samples` are left."""
        left = math.ceil(samples / shards)
        return left - left % self.batch_size if self._loader.drop_last else left

    def rest(
        self, epoch: int, samples: int, assignment: ShardAssignment, *, accumulate: int = 1
    ) -> Rest:
        """Return the rest of the epoch for one rank, after `samples` of the epoch.

        In each step, the `accumulate` batches of one part come before those of the next part.
        """
        order, keys, length = self._begin(epoch)
        if not 0 <= samples <= length:
            raise ValueError(f"{samples} is outside an epoch of {length} samples")
        left = self._samples_left(length - samples, shards=assignment.shards)
        taken, to_read = tee(
            shares(
                assignment,
                order,
                length=length,
                start=samples,
                left=left,
                batch_size=self.batch_size,
                accumulate=accumulate,
            )
        )
        places = keys_of(to_read, keys)
        count = math.ceil(left / (self.batch_size * accumulate))
        read = self._batches.__getitems__  # without DataLoader, which takes longer
        batches: Iterator[Any] = map(read, places)
        if self._reader is not None:
            self._places.batches = places
            batches = iter(self._reader)
        return Rest(taken, count, batches, lambda indices: read([*keys(indices)]))

    def whole_batch(self, epoch: int, samples: int, *, rank: int, world_size: int) -> Any:
        """Load the next batch that one of the ranks has after `samples` of the epoch.

        It is read in this process, without workers. After the last sample it continues with the
        first one, so it is as large as the loader's other batches.
        """
        order, keys, length = self._begin(epoch)
        places = samples + rank + world_size * np.arange(self.batch_size)
        return self._batches.__getitems__([*keys(order(places % length).tolist())])

    def _begin(self, epoch: int) -> Epoch:
        if self._begun is None or self._begun[0] != epoch:
            self._begun = epoch, self._epochs.begin(epoch)
        return self._begun[1]

    def share(self, *, rank: int, world_size: int) -> Iterator[Any]:
        """Yield the batches of one rank; all ranks together read each sample once."""
        part = self._epochs.part(rank, world_size)
        if self._loader.batch_size is None:
            return iter(self._read(self._loader.dataset, batch_sampler=part))
        return iter(self._read(Subset(self._loader.dataset, part), batch_size=self.batch_size))

    def _read(self, dataset: Dataset[Any], **settings: Any) -> DataLoader[Any]:
        loader = self._loader
        return DataLoader(
            dataset,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            in_order=getattr(loader, "in_order", True),
            worker_init_fn=partial(begin_worker, os.getpid(), loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            **{"collate_fn": loader.collate_fn, **settings},
        )


def _unchanged(batch: Any) -> Any:
    return batch


class _Places:
    """A batch sampler for DataLoader that gives the batches to read next."""

    def __init__(self) -> None:
        self.batches: Iterator[list[Key]] = iter(())

    def __iter__(self) -> Iterator[list[Key]]:
        return self.batches

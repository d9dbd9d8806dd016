"""A script's own DataLoader, from any position on: the same samples in the same order after a loss.

Each sample is drawn with random numbers of its own, so that augmentation depends neither on the
worker that does it nor on what was drawn before.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from ddp_trainer.data.sampler import ShardedSampler
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.run import seed_everything


class Loading:
    """What a DataLoader reads, and how."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        """Understand a loader.

        Raises:
            ConfigurationError: it cannot be begun in the middle.
        """
        if isinstance(loader.dataset, IterableDataset):
            raise ConfigurationError(
                "the loader reads an IterableDataset, which cannot begin in the middle of an "
                "epoch: give job.batches() a loader of a dataset with __len__ and __getitem__"
            )
        if loader.batch_size is None:
            raise ConfigurationError(
                "the loader has no batch_size, so that nobody knows how many samples a batch has: "
                "give DataLoader a batch_size instead of a batch_sampler"
            )
        self._loader = loader
        self._seed = seed
        self.samples = len(loader.dataset)  # type: ignore[arg-type]  # map-style datasets have one
        self.batch_size = loader.batch_size
        self._shuffles = _shuffles(loader)

    def batches_left(self, samples: int, *, world_size: int) -> int:
        """Batches of each rank after so many samples of the epoch."""
        left = math.ceil((self.samples - samples) / world_size)
        if self._loader.drop_last:
            return left // self.batch_size
        return math.ceil(left / self.batch_size)

    def rest(
        self, epoch: int, samples: int, *, rank: int, world_size: int
    ) -> Iterator[tuple[int, Any]]:
        """(number of samples, batch) of one rank, after so many samples of the epoch."""
        sampler = ShardedSampler(
            self.samples,
            rank=rank,
            world_size=world_size,
            seed=self._seed,
            shuffle=self._shuffles,
        )
        sampler.set_epoch(epoch, start=samples)
        batches = list(sampler.batches(self.batch_size))
        batches = batches[: self.batches_left(samples, world_size=world_size)]
        source = self._read(
            _Seeded(self._loader.dataset, seed=self._seed),
            batch_sampler=[[(epoch, index) for index in batch] for batch in batches],
        )
        return zip(map(len, batches), source, strict=True)

    def share(self, *, rank: int, world_size: int) -> Iterator[Any]:
        """The batches of one rank, where all ranks together read each sample once."""
        own: Subset[Any] = Subset(self._loader.dataset, range(rank, self.samples, world_size))
        return iter(self._read(own, batch_size=self.batch_size))

    def _read(self, dataset: Dataset[Any], **which: Any) -> DataLoader[Any]:
        loader = self._loader
        return DataLoader(
            dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            **which,
        )


class _Seeded(Dataset[Any]):
    """A dataset whose samples do not depend on which were drawn before, and where."""

    def __init__(self, dataset: Dataset[Any], *, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, place: tuple[int, int]) -> Any:
        epoch, index = place
        name = f"{self._seed}/{epoch}/{index}/sample".encode()
        seed_everything(int.from_bytes(hashlib.blake2b(name, digest_size=7).digest()))
        return self._dataset[index]


def _shuffles(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    if type(sampler) is RandomSampler and not sampler.replacement:
        return True
    if type(sampler) is SequentialSampler:
        return False
    raise ConfigurationError(
        f"the loader has a {type(sampler).__name__}, and nobody knows how to begin in the middle "
        "of its order: give DataLoader shuffle=True or shuffle=False instead of a sampler"
    )

"""What is known of a script's DataLoader before it is read, and the end of its workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.system.deathsignal import die_with_parent


def check_iteration(loader: DataLoader[Any]) -> None:
    """Check that the loader's batches are those of its dataset, sampler and collate_fn.

    Raises:
        ConfigurationError: its class changes them.
    """
    kind = type(loader)
    if kind.__module__.partition(".")[0] == "torchdata":
        return  # its loaders differ only in what they can save
    for name in ("__iter__", "_get_iterator"):
        if getattr(kind, name) is not getattr(DataLoader, name):
            raise ConfigurationError(
                f"the loader is a {kind.__name__}, which has its own {name}(): job.batches() and "
                "job.share() read samples themselves, so what it does with batches would be lost. "
                "Do it in a collate_fn or in the loop, and give a DataLoader"
            )


def begin_worker(rank: int, also: Callable[[int], None] | None, number: int) -> None:
    """Make a worker process end with its rank.

    It holds copies of the rank's connections to the other ranks. While the worker lives, they would
    stay open, and the other ranks would not notice that the rank has died.
    """
    if os.getppid() == rank:  # otherwise it was not forked from the rank, and has no connections
        die_with_parent(rank)
    if also is not None:
        also(number)


def end_workers_with_rank(loader: DataLoader[Any]) -> None:
    """Make the workers of a script's loader end when this process does."""
    loader.worker_init_fn = partial(begin_worker, os.getpid(), loader.worker_init_fn)


def is_stream(loader: DataLoader[Any]) -> bool:
    """Return True if the loader's samples have no index.

    Raises:
        ConfigurationError: it is no DataLoader.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"the loader is a {type(loader).__name__}, whose batches cannot be read again after a "
            "lost rank: give a DataLoader, and put the work of other iterators into its Dataset or "
            "collate_fn"
        )
    return isinstance(loader.dataset, IterableDataset)

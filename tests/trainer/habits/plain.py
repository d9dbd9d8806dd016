"""Runs all loops as plain scripts do, with torch alone: `python -m tests.trainer.habits.plain`.

Each rank prints the digest of each loop. Nothing of the trainer is used here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler

from tests.trainer.habits.loops import LOOPS
from tests.trainer.habits.registry import FEATURES, digest


class PlainJob:
    """Trains one script's models as it would without the trainer."""

    def __init__(
        self, parts: dict[str, Any], *, scheduler_interval: str, options: dict[str, Any]
    ) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.is_main = self.rank == 0
        self.steps_done = 0
        self.weight = 1.0
        self._options = options
        self._optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
        schedulers = [part for part in parts.values() if isinstance(part, LRScheduler)]
        self._plateaus = [each for each in schedulers if isinstance(each, ReduceLROnPlateau)]
        self._schedulers = [each for each in schedulers if each not in self._plateaus]
        self._scaler = parts.get("scaler")
        self._interval = scheduler_interval
        self._nets: list[DistributedDataParallel] = []
        self._epoch, self._score = 0, None
        self._given = self._accumulate = 1
        self._turns = 0

    def wrap(self, model: nn.Module, **ddp: Any) -> nn.Module:
        if self.world_size > 2:
            ddp.pop("static_graph", None)  # torch would lay out gradients in another order
        net = DistributedDataParallel(model, **self._options | ddp)
        if self.world_size > 2 and not net.find_unused_parameters:
            _rehearse(net)
        self._nets.append(net)
        return net

    def wrap_again(self, model: nn.Module) -> nn.Module:
        """Wrap a model again, since other parameters are trained now."""
        self._nets.clear()
        return self.wrap(model)

    def epochs(self, count: int, *, max_steps: int = 0) -> Iterator[int]:
        for epoch in range(count):
            if 0 < max_steps <= self.steps_done:
                return
            self._epoch = epoch
            if epoch and self._interval == "epoch":
                for scheduler in self._schedulers:
                    scheduler.step()
            yield epoch

    def batches(self, loader: DataLoader[Any], *, accumulate: int = 1) -> Iterator[Any]:
        self._accumulate, self.weight = accumulate, 1 / accumulate
        for number, batch in enumerate(self._own(loader)):
            self._given = number % accumulate + 1
            for net in self._nets:
                net.require_backward_grad_sync = self._given == accumulate
            yield batch
            if self._turns:
                self._end_step()

    def _own(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        places: Any
        sampler: Any = loader.sampler if loader.batch_size is not None else loader.batch_sampler
        for each in (sampler, getattr(sampler, "sampler", None)):
            if each is not None and callable(getattr(each, "set_epoch", None)):
                each.set_epoch(self._epoch)
        if type(sampler) in (RandomSampler, SequentialSampler):
            shuffles = type(sampler) is RandomSampler
            own: DistributedSampler[Any] = DistributedSampler(
                loader.dataset, shuffle=shuffles, seed=0
            )
            own.set_epoch(self._epoch)
            places = own
        else:
            found = [*sampler]
            steps = -(-len(found) // self.world_size)
            numbers = (step * self.world_size + self.rank for step in range(steps))
            places = [found[number % len(found)] for number in numbers]
        which: dict[str, Any] = {
            **{"sampler": places, "batch_size": loader.batch_size},
            "drop_last": loader.drop_last,
        }
        if loader.batch_size is None:
            which = {"batch_sampler": places}
        return DataLoader(loader.dataset, collate_fn=loader.collate_fn, **which)

    def step(
        self, loss: Any = None, *, optimizer: Any = None, clip_grad_norm: float | None = None
    ) -> bool:
        del loss
        if self._given < self._accumulate:
            return False
        stepping = self._optimizers if optimizer is None else [optimizer]
        if clip_grad_norm is not None:
            for each in stepping:
                if self._scaler is not None:
                    self._scaler.unscale_(each)
            groups = (group for each in stepping for group in each.param_groups)
            clip_grad_norm_([each for group in groups for each in group["params"]], clip_grad_norm)
        for each in stepping:
            each.step() if self._scaler is None else self._scaler.step(each)
        if self._scaler is not None:
            self._scaler.update()
        for each in self._optimizers:
            each.zero_grad()
        self._turns += optimizer is not None
        if optimizer is None:
            self._end_step()
        return True

    def _end_step(self) -> None:
        self._turns = 0
        self.steps_done += 1
        if self._interval == "step":
            for scheduler in self._schedulers:
                scheduler.step()

    def sum(self, *values: float) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        found: list[float] = total.tolist()
        return found

    def share(self, loader: DataLoader[Any]) -> Iterator[Any]:
        dataset: Any = loader.dataset
        own = Subset(dataset, range(self.rank, len(dataset), self.world_size))
        yield from DataLoader(own, batch_size=loader.batch_size, collate_fn=loader.collate_fn)

    def evaluated(self, score: float) -> None:
        for plateau in self._plateaus:
            plateau.step(score if plateau.mode == "max" else -score)


def _rehearse(net: DistributedDataParallel) -> None:
    """Make a pass that trains nothing, after which the layout of gradients stays."""
    net(torch.zeros(1, FEATURES)).sum().backward()
    net.zero_grad()


@contextmanager
def join(
    *, options: dict[str, Any], scheduler_interval: str = "step", **parts: Any
) -> Iterator[PlainJob]:
    """Stand where `ddp_trainer.join` stands; other arguments than parts are about the trainer."""
    yield PlainJob(parts, scheduler_interval=scheduler_interval, options=options)


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    options = {"find_unused_parameters": dist.get_world_size() > 2}
    for name, loop in LOOPS.items():
        models = loop(partial(join, options=options))
        known = digest(models, with_buffers=rank == 0)
        sys.stdout.write(f"{name} rank {rank} ends with {known}\n")  # at once, unlike print
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The training loop. It fits on a screen and hides nothing."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from ddp_trainer.config import Options
from ddp_trainer.data import SampleTrace, ShardedSampler, evaluation_shard
from ddp_trainer.exit_codes import StoppedError
from ddp_trainer.progress import Progress
from ddp_trainer.resume import Keeper
from ddp_trainer.state import Position, Run, seed_everything
from ddp_trainer.stop import StopSignal
from ddp_trainer.workloads.base import Samples, Workload
from ddp_trainer.world import World

_EVALUATION_BATCH = 256


def train(
    world: World,
    workload: Workload,
    options: Options,
    *,
    keeper: Keeper,
    stop: StopSignal,
    progress: Progress,
) -> None:
    """Train to the end, from the newest checkpoint if there is one.

    Raises:
        StoppedError: a rank was told to stop; the state is saved.
        OSError: the state had to be saved and could not be.
    """
    sampler = ShardedSampler(
        len(workload.train), rank=world.rank, world_size=world.size, seed=options.seed
    )
    total_steps = options.epochs * math.ceil(len(sampler) / options.batch_size)
    seed_everything(options.seed)  # the same weights everywhere
    model = world.wrap(workload.model())
    seed_everything(options.seed + 1 + world.rank)  # but different dropout on each rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
    position = Position()
    run = Run(model=model.module, optimizer=optimizer, scheduler=scheduler, position=position)
    keeper.resume(run)
    progress.begin(
        position, total_steps=total_steps, epoch_length=len(workload.train), keeper=keeper
    )
    trace = SampleTrace(options.trace_samples, rank=world.rank)

    while position.epoch < options.epochs:
        sampler.set_epoch(position.epoch, start=position.samples)
        for indices in sampler.batches(options.batch_size):
            vote = stop.start_vote(world)
            inputs, targets = _batch(workload.train, indices, world.device)
            loss = workload.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            position.advance(len(indices) * world.size, epoch_length=len(workload.train))
            progress.step(position)
            trace.write(step=position.step, epoch=position.epoch, samples=indices)
            if position.step % options.log_every_steps == 0 or position.step == total_steps:
                progress.loss(position, world.sum(loss.item())[0] / world.size)
            time.sleep(options.step_delay_seconds)
            if vote.says_stop():
                keeper.save(run, required=True)
                raise StoppedError(f"told to stop at step {position.step} of {total_steps}")
            if position.step % options.checkpoint_every_steps == 0:
                keeper.save(run)
        position.next_epoch()
        progress.evaluated(position, accuracy=evaluate(world, model.module, workload))
    if progress.report.accuracy is None:  # resumed from the checkpoint of a finished run
        progress.evaluated(position, accuracy=evaluate(world, model.module, workload))
    keeper.save(run, required=True)


@torch.no_grad()
def evaluate(world: World, model: nn.Module, workload: Workload) -> float:
    """Mean score over the whole test set, each sample counted once however the set divides."""
    model.eval()
    score, count = 0.0, 0
    shard = evaluation_shard(len(workload.test), rank=world.rank, world_size=world.size)
    for first in range(0, len(shard), _EVALUATION_BATCH):
        indices = list(shard[first : first + _EVALUATION_BATCH])
        inputs, targets = _batch(workload.test, indices, world.device)
        score += workload.score(model(inputs), targets).sum().item()
        count += len(indices)
    model.train()
    score, count_everywhere = world.sum(score, count)
    return score / count_everywhere


def _batch(samples: Samples, indices: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    chosen = torch.tensor(indices)
    return (
        samples.inputs[chosen].to(device, non_blocking=True),
        samples.targets[chosen].to(device, non_blocking=True),
    )

"""The training loop. It fits on a screen and hides nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddp_trainer.collectives.compression import PowerSGD
from ddp_trainer.collectives.group import Group
from ddp_trainer.data.sampler import SampleTrace, ShardedSampler, evaluation_batches
from ddp_trainer.devices.hardware import check_abilities, make_deterministic, prepare_model
from ddp_trainer.devices.precision import autocast, gradient_scaler
from ddp_trainer.library.keeper import Keeper
from ddp_trainer.library.progress import Progress
from ddp_trainer.loop.replica import Replica
from ddp_trainer.run.optimization import Optimization, optimizer_of, scheduler_of
from ddp_trainer.run.run import ModelRun, Order, Position, seed_everything, seed_step
from ddp_trainer.run.schedule import Course
from ddp_trainer.run.stop import StopSignal, Votes
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import Precision
from ddp_trainer.telemetry.timing import Phase, StepTimer
from ddp_trainer.workloads.base import SampleSet, Workload


def new_run(
    workload: Workload, options: Options, *, world_size: int, device: torch.device
) -> ModelRun:
    """A run at step 0, the same on all ranks.

    Raises:
        ConfigurationError: the device, or this machine, cannot do what the options ask for.
    """
    check_abilities(options, device)
    if options.hardware.deterministic:
        make_deterministic()
    seed_everything(options.seed)
    model = prepare_model(workload.model(), options, device)
    optimizer = optimizer_of(workload, model, options.optimization)
    course = Course(
        epochs=options.epochs,
        epoch_length=len(workload.train),
        step_size=options.step_size * world_size,
        max_steps=options.max_steps,
    )
    optimization = Optimization(
        optimizer,
        scheduler_of(workload, optimizer, options.optimization, course),
        scaler=gradient_scaler(options.optimization.precision, device),
        clip_grad_norm=options.optimization.clip_grad_norm,
        skip_zero_grads=options.optimization.skip_zero_grads,
    )
    return ModelRun(
        model=model,
        optimization=optimization,
        order=Order(seed=options.seed, samples=len(workload.train)),
        compression=PowerSGD.from_options(options.ddp),
    )


def total_steps(
    workload: Workload, options: Options, *, world_size: int, position: Position | None = None
) -> int:
    """Optimizer steps of a whole run, of which those before `position` are done.

    They may have been done with another world size.
    """

    def steps(samples: int) -> int:
        return math.ceil(math.ceil(samples / world_size) / options.step_size)

    done = position or Position()
    if _is_over(done, options):
        return done.step
    length, epochs_left = len(workload.train), options.epochs - done.epoch
    total = done.step + steps(length - done.samples) + (epochs_left - 1) * steps(length)
    return min(total, options.max_steps) if options.max_steps else total


def _is_over(position: Position, options: Options) -> bool:
    return position.epoch >= options.epochs or 0 < options.max_steps <= position.step


def train(
    group: Group,
    run: ModelRun,
    workload: Workload,
    options: Options,
    *,
    keeper: Keeper,
    stop: StopSignal,
    timer: StepTimer,
    progress: Progress,
) -> None:
    """Train from where the run stands to the end.

    May be called again with a new group and the same run when the group breaks.

    Raises:
        StoppedError: this rank was told to stop; the state is saved.
        BrokenGroupError: another rank was told so, and leaves; the state is saved.
        OSError: the state had to be saved and could not be.
    """
    replica = Replica(run, group, workload.loss, options)
    position = run.position
    sampler = ShardedSampler(
        len(workload.train), rank=group.rank, world_size=group.size, seed=options.seed
    )
    trace = SampleTrace(options.trace_samples, rank=group.rank)
    votes = Votes(group, stop=stop.told, save=keeper.is_overdue)
    if _is_over(position, options):  # it was finished when it came here
        score = _evaluate(group, run, workload, options, stop)
        if score is not None:
            progress.evaluated(position, accuracy=score)

    while not _is_over(position, options):
        sampler.set_epoch(position.epoch, start=position.samples)
        for indices in sampler.batches(options.step_size):
            votes.begin(position.step)
            seed_step(options.seed, rank=group.rank, step=position.step, purpose="data")
            inputs, targets = _batch(workload.train, indices, group.device)
            timer.lap(Phase.DATA)
            replica.rehearse(inputs, targets)
            seed_step(options.seed, rank=group.rank, step=position.step)
            trace.write(step=position.step + 1, epoch=position.epoch, samples=indices)
            loss = replica.backward(inputs, targets, before_waiting=timer.lap_before_waiting)
            timer.lap(Phase.COMMUNICATION)
            run.complete_step(len(indices) * group.size)
            progress.step(position)
            if options.step_delay_seconds:
                time.sleep(options.step_delay_seconds)
            timer.lap(Phase.COMPUTE)
            votes.read()
            if votes.save or keeper.is_due(position.step):
                replica.equalise()
                keeper.save(run)
                timer.lap(Phase.CHECKPOINT)
            if progress.wants_interval(position):
                votes.pace(progress.interval(position, loss.item(), group))
            if votes.stop:
                replica.equalise()
                keeper.save_and_stop(run, group, stop, total_steps=progress.total_steps)
            if _is_over(position, options):
                break
        replica.equalise()
        score = _evaluate(group, run, workload, options, stop)
        if score is None:
            keeper.save_and_stop(run, group, stop, total_steps=progress.total_steps)
        progress.evaluated(position, accuracy=score)
        if position.samples == len(workload.train):
            position.next_epoch()
        keeper.evaluated(run, score)
    keeper.save_for_certain(run, group)


def _evaluate(
    group: Group, run: ModelRun, workload: Workload, options: Options, stop: StopSignal
) -> float | None:
    seed_step(options.seed, rank=group.rank, step=run.position.step, purpose="evaluation")
    return evaluate(
        group,
        run.model,
        workload,
        options.optimization.precision,
        batch_size=options.evaluation_batch_size,
        told_to_stop=stop.told,
    )


@torch.no_grad()
def evaluate(
    group: Group,
    model: nn.Module,
    workload: Workload,
    precision: Precision = "fp32",
    *,
    batch_size: int,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Mean score over the whole test set, each sample counted once however the set divides.

    `batch_size` of each rank. None when a rank was told to stop meanwhile; the same on all ranks.
    """
    model.eval()
    score, count = 0.0, 0
    votes = Votes(group, stop=told_to_stop, save=lambda: False)
    batches = evaluation_batches(
        len(workload.test), batch_size, rank=group.rank, world_size=group.size
    )
    for number, indices in enumerate(batches):
        votes.begin(number)
        if indices:
            inputs, targets = _batch(workload.test, indices, group.device)
            with autocast(precision, group.device):
                outputs = model(inputs)
            # In float64, so that the mean does not depend on which samples make a batch.
            score += workload.score(outputs, targets).sum(dtype=torch.float64).item()
            count += len(indices)
        votes.read()
        if votes.stop:
            break
    model.train()
    score, count_everywhere = group.sum(score, count)
    return None if votes.stop else score / count_everywhere


def _batch(samples: SampleSet, indices: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, targets = samples.batch(indices)
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

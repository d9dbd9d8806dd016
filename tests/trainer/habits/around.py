"""Loops with work around the steps: evaluations, logs, profilers, early ends."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tests.trainer.habits.registry import (
    EPOCHS,
    Job,
    Join,
    Models,
    habit,
    loader,
    loss_of,
    network,
    sgd,
    trained,
)


@habit
def losses_read_at_each_step(join: Join) -> Models:
    seen: list[float] = []
    return trained(join, after=lambda _job, _net, loss: seen.append(loss.item()))


@habit
def evaluation_within_the_loop(join: Join) -> Models:
    """Without gradients, in eval mode, on every third step."""

    def step(job: Job, net: nn.Module, _loss: Tensor) -> None:
        if job.steps_done % 3 == 0:
            net.eval()
            with torch.no_grad():
                net(torch.ones(2, 6))
            net.train()

    return trained(join, network(normalised=True), after=step)


@habit
def evaluation_with_gradients(join: Join) -> Models:
    """The script has forgotten `no_grad`, and calls no backward pass."""

    def step(_job: Job, net: nn.Module, _loss: Tensor) -> None:
        net.eval()
        net(torch.ones(2, 6))
        net.train()

    return trained(join, after=step)


@habit
def evaluation_by_all_ranks(join: Join) -> Models:
    model = network(normalised=True)
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            net.train()
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
            _evaluate(job, net)
    return [model]


@torch.no_grad()
def _evaluate(job: Job, net: nn.Module) -> float:
    net.eval()
    right, count = 0.0, 0
    for inputs, targets in job.share(loader(shuffle=False)):
        outputs: Tensor = net(inputs)
        right += float((outputs.argmax(1) == targets).sum())
        count += len(targets)
    right, of_all = job.sum(right, count)
    assert of_all == 48
    return right / of_all


@habit
def early_stop_by_all_ranks(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for epoch in job.epochs(10):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
            if _evaluate(job, net) > 2 or epoch == 1:
                break
    return [model]


@habit
def limited_number_of_steps(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(9, max_steps=8):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
                if job.steps_done == 8:
                    break
    return [model]


class Bar:
    """A progress bar around an iterator, as tqdm's."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        began = time.monotonic()
        for number, batch in enumerate(self._batches):
            yield batch
            sys.stderr.write(f"\r{number} {time.monotonic() - began:.1f} s")


@habit
def progress_bar(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for number, (inputs, targets) in enumerate(Bar(job.batches(loader()))):
                loss = loss_of(net(inputs), targets) * (1 if number >= 0 else 0)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def profiler(join: Join) -> Models:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        models = trained(join, after=lambda _job, _net, _loss: profile.step())
    assert profile.key_averages()
    return models


@habit
def loss_averaged_for_the_log(join: Join) -> Models:
    """A collective after the step, which changes nothing that is trained."""

    def step(job: Job, _net: nn.Module, loss: Tensor) -> None:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if job.is_main and job.steps_done % 4 == 0:
            sys.stderr.write(f"loss {mean.item() / job.world_size:.3f}\n")

    return trained(join, after=step)


@habit
def barrier_after_each_epoch(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
            dist.barrier()
    return [model]


@habit
def only_rank_0_writes(join: Join) -> Models:
    def step(job: Job, net: nn.Module, _loss: Tensor) -> None:
        if job.is_main:
            with contextlib.suppress(OSError), open("/dev/null", "w") as file:
                file.write(str({name: each.shape for name, each in net.state_dict().items()}))

    return trained(join, after=step)


@habit
def anomalies_detected(join: Join) -> Models:
    with torch.autograd.set_detect_anomaly(True):
        return trained(join)


@habit
def threads_set_by_the_script(join: Join) -> Models:
    torch.set_num_threads(1)
    return trained(join)

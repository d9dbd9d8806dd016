"""Loops that differ in optimizers, schedules, precision and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

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
    train,
    trained,
)


def _stepped_by(join: Join, optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> Models:
    model = network()
    return trained(join, model, optimizer=optimizer_of(model.parameters()))


@habit
def momentum_of_nesterov(join: Join) -> Models:
    return _stepped_by(
        join, lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9, nesterov=True)
    )


@habit
def adam_with_amsgrad(join: Join) -> Models:
    return _stepped_by(join, lambda each: torch.optim.AdamW(each, lr=0.01, amsgrad=True))


@habit
def rmsprop(join: Join) -> Models:
    return _stepped_by(join, lambda each: torch.optim.RMSprop(each, lr=0.01, centered=True))


@habit
def adagrad(join: Join) -> Models:
    return _stepped_by(join, lambda each: torch.optim.Adagrad(each, lr=0.1))


class Lion(torch.optim.Optimizer):
    """An optimizer from a paper, written as most are: through `.data`."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                gradient, (first, second) = parameter.grad.data, group["betas"]
                update = (average * first + gradient * (1 - first)).sign()
                parameter.data.add_(update, alpha=-group["lr"])
                average.mul_(second).add_(gradient, alpha=1 - second)


@habit
def optimizer_of_a_paper(join: Join) -> Models:
    return _stepped_by(join, lambda each: Lion(each, lr=0.01))


@habit
def gradients_cleared_at_the_top(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                optimizer.zero_grad()
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def gradients_cleared_by_zeros(join: Join) -> Models:
    class Zeroing(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = False) -> None:
            del set_to_none
            super().zero_grad(set_to_none=False)

    return _stepped_by(join, lambda each: Zeroing(each, lr=0.1))


@habit
def clipped_norm(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss, clip_grad_norm=0.1)
    return [model]


@habit
def clipped_by_the_script(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                job.step(loss)
    return [model]


@habit
def accumulated_batches(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(4):
            for inputs, targets in job.batches(loader(), accumulate=2):
                loss = loss_of(net(inputs), targets) * job.weight
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def bfloat16_by_autocast(join: Join) -> Models:
    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(net(inputs), targets)

    return trained(join, loss_by=loss_by)


@habit
def mixed_precision_by_hand(join: Join) -> Models:
    """The script scales the loss, and unscales and clips the gradients."""
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with join(model=model, optimizer=optimizer, scaler=scaler) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                job.step(loss)
    return [model]


@habit
def scaler_that_is_turned_off(join: Join) -> Models:
    """As in scripts that are run without their `--amp`."""
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with join(model=model, optimizer=optimizer, scaler=scaler) as job:
        train(job, job.wrap(model))
    return [model]


@habit
def weights_in_bfloat16(join: Join) -> Models:
    return trained(
        join,
        network().bfloat16(),
        loss_by=lambda net, batch: loss_of(net(batch[0].bfloat16()), batch[1]),
    )


@habit
def rate_set_by_hand(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 / (job.steps_done + 1)
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


def _scheduled(join: Join, scheduler_of: Callable[[Any], Any], **settings: Any) -> Models:
    model = network()
    optimizer = sgd(model, momentum=0.9)
    scheduler = scheduler_of(optimizer)
    with join(model=model, optimizer=optimizer, scheduler=scheduler, **settings) as job:
        train(job, job.wrap(model))
    return [model]


@habit
def warm_up_from_zero(join: Join) -> Models:
    return _scheduled(join, lambda each: LambdaLR(each, lambda step: min(step / 4, 1)))


@habit
def one_cycle(join: Join) -> Models:
    return _scheduled(join, lambda each: OneCycleLR(each, max_lr=0.2, total_steps=40))


@habit
def warm_up_and_decay_in_sequence(join: Join) -> Models:
    def scheduler_of(optimizer: Any) -> SequentialLR:
        first = LambdaLR(optimizer, lambda step: (step + 1) / 4)
        return SequentialLR(optimizer, [first, ExponentialLR(optimizer, 0.9)], milestones=[3])

    return _scheduled(join, scheduler_of)


@habit
def rates_by_epoch(join: Join) -> Models:
    return _scheduled(join, lambda each: MultiStepLR(each, [1]), scheduler_interval="epoch")


@habit
def restarts_of_a_cosine(join: Join) -> Models:
    return _scheduled(join, lambda each: CosineAnnealingWarmRestarts(each, T_0=3))


@habit
def rate_by_the_score(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    plateau = ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.1)
    with join(model=model, optimizer=optimizer, plateau=plateau) as job:
        net = job.wrap(model)
        for _ in job.epochs(3):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
            job.evaluated(_accuracy(job, net))
    return [model]


@torch.no_grad()
def _accuracy(job: Job, net: nn.Module) -> float:
    right = torch.zeros(())
    for inputs, targets in job.share(loader(shuffle=False)):
        outputs: Tensor = net(inputs)
        right += (outputs.argmax(1) == targets).sum()
    [of_all] = job.sum(float(right))
    return of_all

"""A workload with its own optimizer and scheduler."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.learner import Learner
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import Workload
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from tests.trainer.loop.test_schedule import workload

FLAGS = ("--epochs=2", "--batch-size=50", "--lr=0.25")
CPU = torch.device("cpu")
STEPS = 20  # 2 epochs of 1000 / (2 x 50)


def sgd(model: nn.Module, lr: float) -> Optimizer:
    weights = [{"params": [p], "lr": lr / 10 if p.ndim == 1 else lr} for p in model.parameters()]
    return SGD(weights, momentum=0.9)


def one_cycle(optimizer: Optimizer, steps: int) -> LRScheduler:
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=steps)


def own(**parts: Any) -> Workload:
    return replace(workload(), **parts)


def begin(trained: Workload, *flags: str) -> TrainState:
    options = Options.parse([*FLAGS, *flags])
    learner = Learner.of(trained, options, world_size=2, device=CPU)
    run = TrainState(learner.parts(), seed=0, device=CPU)
    run.choose_samples(1000)
    return run


def train(run: TrainState, *, steps: int) -> list[list[float]]:
    """Return the rates of each parameter group at each step."""
    rates: list[list[float]] = []
    [optimizer] = run.optimizers
    hook = optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append([group["lr"] for group in optimizer.param_groups])
    )
    for _ in range(steps):
        run.models[0](torch.ones(1, 1)).sum().backward()
        run.updates.complete_step(100)
        if run.position.samples == 1000:
            run.end_epoch()
    hook.remove()
    assert len(optimizer.param_groups) == len(rates[0])
    return rates


def test_its_own_optimizer_follows_the_bundled_schedule() -> None:
    run = begin(own(optimizer=sgd), "--warmup-steps=1")
    assert isinstance(run.optimizers[0], SGD)
    rates = train(run, steps=STEPS)
    assert rates[:2] == [[0.125, 0.0125], [0.25, 0.025]]
    assert rates[-1] == pytest.approx([0.25 * 0.00682, 0.025 * 0.00682], rel=1e-2)


def test_its_own_scheduler_steps_and_resumes() -> None:
    def fresh() -> TrainState:
        return begin(own(optimizer=sgd, scheduler=one_cycle))

    whole = train(fresh(), steps=STEPS)
    weights = [nn.Parameter(torch.zeros(1, 1)), nn.Parameter(torch.zeros(1))]
    reference = SGD(
        [{"params": [w], "lr": lr} for w, lr in zip(weights, (0.25, 0.025), strict=True)]
    )
    cycle, expected = one_cycle(reference, STEPS), []
    for _ in range(STEPS):
        expected.append([group["lr"] for group in reference.param_groups])
        reference.step()
        if len(expected) < STEPS:
            cycle.step()
    assert whole == expected

    first, second = fresh(), fresh()
    rates = train(first, steps=7)
    second.load_state_dict(copy.deepcopy(first.full_state_dict()))
    assert rates + train(second, steps=STEPS - 7) == whole


def test_its_own_scheduler_refuses_the_bundled_ones_state() -> None:
    bundled, other = begin(workload()), begin(own(scheduler=one_cycle))
    with pytest.raises(ValueError, match="scheduler"):
        other.load_state_dict(bundled.full_state_dict())


@pytest.mark.parametrize("flag", ["--schedule=constant", "--warmup-steps=3", "--min-lr-ratio=0.1"])
def test_flags_that_its_own_scheduler_ignores_are_refused(flag: str) -> None:
    name = flag.partition("=")[0]
    with pytest.raises(ConfigurationError, match=f"{name} is for the bundled schedule, .*remove"):
        begin(own(scheduler=one_cycle), flag)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"optimizer": lambda model, _: model}, "workload's optimizer must .*, not Linear"),
        ({"scheduler": lambda *_: None}, "workload's scheduler must .*, not NoneType"),
        (
            {"scheduler": lambda optimizer, _: ReduceLROnPlateau(optimizer)},
            "ReduceLROnPlateau, which needs a score at each step",
        ),
    ],
)
def test_other_objects_are_refused_as_optimizer_or_scheduler(
    parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        begin(own(**parts))

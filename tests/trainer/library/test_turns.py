"""Optimizers that take turns with each batch, in one process."""

from __future__ import annotations

from collections.abc import Iterator

import ddp_trainer
import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 3


class Pair:
    """Two models that are trained against each other."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.left = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4))
        self.right = nn.Linear(4, 1)
        self.left_optimizer = SGD(self.left.parameters(), lr=0.01, momentum=0.9)
        self.right_optimizer = SGD(self.right.parameters(), lr=0.02)
        self.scheduler = ExponentialLR(self.right_optimizer, 0.9)

    def state(self) -> dict[str, Tensor]:
        return {**self.left.state_dict(prefix="left."), **self.right.state_dict(prefix="right.")}


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.fixture
def job(pair: Pair) -> Iterator[ddp_trainer.Job]:
    with ddp_trainer.join(**vars(pair)) as joined:
        yield joined


def batches() -> DataLoader[tuple[Tensor, ...]]:
    inputs = torch.arange(4.0 * BATCHES).unsqueeze(1)
    return DataLoader(TensorDataset(inputs), batch_size=4, shuffle=False)


def test_steps_equal_those_of_a_plain_loop(job: ddp_trainer.Job, pair: Pair) -> None:
    left, right = job.wrap(pair.left), job.wrap(pair.right)
    plain = Pair()
    for (inputs,) in batches():
        features = plain.left(inputs)
        plain.right(features.detach()).square().mean().backward()
        plain.right_optimizer.step()
        plain.right_optimizer.zero_grad()
        (-plain.right(features)).exp().mean().backward()
        plain.left_optimizer.step()
        plain.left_optimizer.zero_grad()
        plain.right_optimizer.zero_grad()
        plain.scheduler.step()
    for (inputs,) in job.batches(batches()):
        features = left(inputs)
        loss = right(features.detach()).square().mean()
        loss.backward()
        assert job.step(loss, optimizer=pair.right_optimizer)
        loss = (-right(features)).exp().mean()
        loss.backward()
        assert job.step(loss, optimizer=pair.left_optimizer)
    assert job.steps_done == BATCHES
    torch.testing.assert_close(pair.state(), plain.state(), rtol=0, atol=0)
    assert pair.scheduler.get_last_lr() == plain.scheduler.get_last_lr()


def test_an_unknown_optimizer_is_refused(job: ddp_trainer.Job, pair: Pair) -> None:
    job.wrap(pair.left), job.wrap(pair.right)
    next(job.batches(batches()))
    with pytest.raises(ConfigurationError, match=r"an optimizer that join\(\) does not know"):
        job.step(optimizer=SGD(pair.left.parameters()))


def test_turns_with_accumulation_are_refused(job: ddp_trainer.Job, pair: Pair) -> None:
    job.wrap(pair.left), job.wrap(pair.right)
    next(job.batches(batches(), accumulate=2))
    with pytest.raises(ConfigurationError, match=r"accumulate=.* cannot be combined"):
        job.step(optimizer=pair.left_optimizer)


def test_a_step_without_an_optimizer_is_refused_after_a_turn(
    job: ddp_trainer.Job, pair: Pair
) -> None:
    net, _ = job.wrap(pair.left), job.wrap(pair.right)
    for (inputs,) in job.batches(batches()):
        net(inputs).sum().backward()
        assert job.step(optimizer=pair.left_optimizer)
        with pytest.raises(RuntimeError, match=r"name one .*job\.step\(loss, optimizer=optimizer"):
            job.step()
        break

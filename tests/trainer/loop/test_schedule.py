"""The learning rate of every step, for any number of ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.loop.learner import Learner
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import Samples, Workload
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, EPOCHS, LR = 1000, 3, 0.5
CPU = torch.device("cpu")
FLAGS = (f"--epochs={EPOCHS}", "--batch-size=8", f"--lr={LR}")


def workload() -> Workload:
    samples = Samples(inputs=torch.zeros(SAMPLES, 1), targets=torch.zeros(SAMPLES, 1))
    return Workload(
        train=samples,
        test=samples,
        model=lambda: nn.Linear(1, 1),
        loss=functional.mse_loss,
        score=lambda outputs, targets: (outputs == targets).float().squeeze(1),
    )


class Training:
    """A run of the bundled loop's steps in one process, without groups."""

    def __init__(self, *flags: str) -> None:
        self._options = Options.parse([*FLAGS, *flags])
        self.rates: list[float] = []
        """Rate of each step of the optimizer."""
        self.shares: list[float] = []
        """Share of the samples of all epochs before each step."""
        self.run: TrainState | None = None

    def train(self, world_size: int, *, until: Callable[[float], bool] = lambda _: False) -> None:
        """Train with this number of ranks from the last position until a share is done."""
        before, self.run = self.run, self._new_run(world_size)
        if before is not None:
            self.run.load_state_dict(copy.deepcopy(before.full_state_dict()))
        position = self.run.position
        while position.epoch < EPOCHS:
            loader = DataLoader(TensorDataset(torch.zeros(SAMPLES)), self._options.step_size)
            assignment = ShardAssignment(shards=world_size, rank=0, size=world_size)
            rest = Loading(loader, seed=0).rest(position.epoch, position.samples, assignment)
            while step := rest.next_step():
                share = (position.epoch * SAMPLES + position.samples) / (EPOCHS * SAMPLES)
                if until(share):
                    return
                self.shares.append(share)
                self.run.updates.complete_step(step.samples)
            self.run.end_epoch()

    def _new_run(self, world_size: int) -> TrainState:
        learner = Learner.of(workload(), self._options, world_size=world_size, device=CPU)
        learner.optimizer.register_step_pre_hook(
            lambda optimizer, *_: self.rates.append(optimizer.param_groups[0]["lr"])
        )
        run = TrainState(learner.parts(), seed=0, device=CPU)
        run.choose_samples(SAMPLES)
        return run


def rates_by_steps(*, world_size: int, warmup: int, least: float = 0.0) -> list[float]:
    """Return the expected schedule of an undisturbed run: a function of its steps alone."""
    total = EPOCHS * math.ceil(SAMPLES / world_size / 8)
    factors = [(step + 1) / (warmup + 1) for step in range(warmup)]
    for step in range(warmup, total):
        cosine = (1 + math.cos(math.pi * ((step - warmup) / (total - warmup)))) / 2
        factors.append(least + (1 - least) * cosine)
    return [LR * factor for factor in factors]


@pytest.mark.parametrize("world_size", [1, 3, 7])
@pytest.mark.parametrize("warmup", [0, 20])
def test_rates_of_an_undisturbed_run_depend_on_steps_alone(world_size: int, warmup: int) -> None:
    training = Training(f"--warmup-steps={warmup}", "--min-lr-ratio=0.1")
    training.train(world_size)
    assert training.rates == rates_by_steps(world_size=world_size, warmup=warmup, least=0.1)


SIZES = [(2, 4), (2, 1), (4, 3, 1), (1, 8, 2)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_rate_follows_the_share_of_samples_for_any_ranks(
    sizes: Sequence[int],
) -> None:
    training = Training()
    for number, world_size in enumerate(sizes):
        end = (number + 1) / len(sizes)
        training.train(world_size, until=lambda share, end=end: share >= end)  # type: ignore[misc]
    a_step = max(sizes) * 8 / SAMPLES / EPOCHS
    for rate, share in zip(training.rates, training.shares, strict=True):
        # An epoch's last step is smaller, but counts as a whole step.
        slower, faster = (
            math.cos(math.pi * min(max(x, 0), 1)) for x in (share + a_step, share - a_step)
        )
        assert LR * (1 + slower) / 2 <= rate <= LR * (1 + faster) / 2
    assert all(later < earlier for earlier, later in pairwise(training.rates))
    assert 0 < training.rates[-1] < LR * (math.pi * a_step) ** 2, "it ends where training ends"


@pytest.mark.parametrize("sizes", [(2, 4), (2, 1)], ids=str)
@pytest.mark.parametrize("at", [10, 20, 60], ids="resized at step {}".format)
def test_a_warm_up_counts_steps_and_is_never_repeated(sizes: Sequence[int], at: int) -> None:
    training = Training("--warmup-steps=20")
    training.train(sizes[0], until=lambda _: len(training.rates) == at)
    training.train(sizes[1])
    assert training.rates[:20] == [LR * (step + 1) / 21 for step in range(20)]
    assert training.rates[20] == LR
    jumps = [earlier - later for earlier, later in pairwise(training.rates[20:])]
    # A cosine's steepest step, of the larger world size.
    assert min(jumps) >= 0
    assert max(jumps) < 1.2 * LR * math.pi / 2 * max(sizes) * 8 / (EPOCHS * SAMPLES - 20 * 16)
    assert training.rates[-1] < 0.01 * LR


def test_the_end_of_the_cosine_needs_no_steps_after_the_warm_up() -> None:
    training = Training("--warmup-steps=1000")
    training.train(1)
    assert training.rates == [LR * (step + 1) / 1001 for step in range(375)]


def test_a_warm_up_of_another_length_changes_no_later_rate() -> None:
    training = Training("--warmup-steps=40")
    training.train(2, until=lambda _: len(training.rates) == 70)
    shorter = Training("--warmup-steps=20")
    shorter.run = training.run
    shorter.train(2)
    assert shorter.rates == rates_by_steps(world_size=2, warmup=20)[70:]


def test_a_constant_rate_is_constant() -> None:
    training = Training("--schedule=constant", "--warmup-steps=2")
    training.train(2, until=lambda share: share >= 0.5)
    training.train(1)
    assert set(training.rates[2:]) == {LR}


def test_the_cosine_ends_with_the_last_step_that_is_allowed() -> None:
    training = Training("--max-steps=60", "--warmup-steps=10")
    training.train(2, until=lambda _: len(training.rates) == 60)
    expected = [(1 + math.cos(math.pi * (step / 50))) / 2 for step in range(50)]
    assert training.rates[10:] == [LR * factor for factor in expected]


def test_a_limit_beyond_the_last_step_changes_no_rate() -> None:
    training = Training("--max-steps=10000", "--warmup-steps=10")
    training.train(2)
    assert training.rates == rates_by_steps(world_size=2, warmup=10)

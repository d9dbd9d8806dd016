"""The state of a run counts the time of its training."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from ddp_trainer.run.train_state import TrainState
from torch import nn


def new_run() -> TrainState:
    return TrainState({"model": nn.Linear(1, 1)}, seed=0, device=torch.device("cpu"))


class Clock:
    """Stands for the monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def steps(self, run: TrainState, *seconds: float) -> dict[str, Any]:
        """Complete steps that take this long; return the state afterwards."""
        for each in seconds:
            self.now += each
            run.updates.count_time()
        return run.full_state_dict()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_the_first_step_of_each_group_is_not_counted(clock: Clock) -> None:
    run = new_run()
    clock.steps(run, 30, 2, 3)
    assert run.trained_seconds == 5
    run.begin_group()
    clock.steps(run, 60, 4)
    assert run.trained_seconds == 9


def test_the_time_of_steps_that_are_lost_is_lost(clock: Clock) -> None:
    run = new_run()
    saved = clock.steps(run, 30, 2)
    clock.steps(run, 3)
    # Another process continues from the checkpoint, or this one from an earlier step.
    for resumed in (new_run(), run):
        resumed.load_state_dict(saved)
        clock.steps(resumed, 50, 1)
        assert resumed.trained_seconds == 3


def test_the_time_of_an_older_releases_state_is_unknown(clock: Clock) -> None:
    run = new_run()
    saved = run.state_dict()
    del saved["trained_seconds"]
    run.load_state_dict(saved)
    clock.steps(run, 1, 1)
    assert run.trained_seconds is None
    assert run.state_dict()["trained_seconds"] is None

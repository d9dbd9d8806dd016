"""Between two steps, a rank asks only for what is due, so that a step costs little of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.library.steps.taking import Steps
from ddp_trainer.run.stop import Votes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MOST_FILES, MOST_CALLS = 23, 70
"""Of a step without a duty, of one model in two layers."""
OURS = str(Path(ddp_trainer.__file__).parent)


class Trace:
    """Files and calls of the trainer in one step."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls = 0

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call; for `sys.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.add(frame.f_code.co_filename)
            self.calls += 1


@contextmanager
def training(**settings: Any) -> Iterator[tuple[ddp_trainer.Job, nn.Module]]:
    """Join as the only rank; yield the job and its wrapped model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddp_trainer.join(model=model, optimizer=optimizer, **settings) as job:
        yield job, job.wrap(model)


def batches(job: ddp_trainer.Job, steps: int) -> Iterator[torch.Tensor]:
    """Yield the batches of an epoch of so many steps."""
    samples = TensorDataset(torch.randn(2 * steps, 4))
    for (inputs,) in job.batches(DataLoader(samples, batch_size=2, shuffle=True)):
        yield inputs


@pytest.mark.usefixtures("no_launcher")
def test_a_plain_step_enters_few_files() -> None:
    traces: list[Trace] = []
    with training(log_every_steps=20) as (job, net):
        for inputs in batches(job, 60):
            sys.setprofile(None)
            if job.steps_done > 20:  # the first log line says how often to vote
                traces.append(Trace())
                sys.setprofile(traces[-1].note)
            net(inputs).square().mean().backward()
            job.step()
        sys.setprofile(None)
    # Some of these steps have duties, and the number of steps between them depends on their time.
    assert min(len(trace.files) for trace in traces) <= MOST_FILES
    assert min(trace.calls for trace in traces) <= MOST_CALLS


@pytest.mark.usefixtures("no_launcher")
def test_duties_are_done_after_their_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    do = Steps._do_duties

    def note(self: Steps, *arguments: Any) -> None:
        done.append(self._session.run.position.step)
        do(self, *arguments)

    def vote_once(self: Votes, _: float) -> None:
        self._every_steps = 1000

    monkeypatch.setattr(Steps, "_do_duties", note)
    monkeypatch.setattr(Votes, "pace", vote_once)
    with training(log_every_steps=4, checkpoint_every_steps=7) as (job, net):
        for inputs in batches(job, 20):
            net(inputs).square().mean().backward()
            job.step()
    # Ranks vote in each step until the first log line.
    assert done == [1, 2, 3, 4, 7, 8, 12, 14, 16, 20]

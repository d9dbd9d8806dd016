"""Between two steps, a rank asks only for what is due, so that a step costs little of its own."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.library.steps import duties
from ddp_trainer.library.steps.duties import Duties
from ddp_trainer.run.stop import Votes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library import surviving
from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.support.tracing import Trace


def two_layers() -> nn.Module:
    """Return a model without buffers."""
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def deep() -> nn.Module:
    """Return a model whose work per step in Python must not grow with its parameters."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)), nn.Linear(4, 1))


def normalised() -> nn.Module:
    """Return a model with 36 buffers, which each step copies."""
    layers = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(12))
    return nn.Sequential(*layers, nn.Linear(4, 1))


MOST_FILES_OF_A_SURVIVOR = 68
"""From the loss of another rank to the second step that follows, in all threads."""


@pytest.fixture
def _rare_duties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no duty depend on the speed of this machine; ranks vote until the first log line."""

    def vote_once(self: Votes, _: float) -> None:
        self._every_steps = 1000

    monkeypatch.setattr(Votes, "pace", vote_once)
    monkeypatch.setattr(duties, "_LOOK_SECONDS", math.inf)


@contextmanager
def training(
    model_of: Callable[[], nn.Module] = two_layers, **settings: Any
) -> Iterator[tuple[ddp_trainer.Job, nn.Module]]:
    """Join as the only rank; yield the job and its wrapped model."""
    torch.manual_seed(0)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddp_trainer.join(model=model, optimizer=optimizer, **settings) as job:
        yield job, job.wrap(model)


def batches(job: ddp_trainer.Job, steps: int) -> Iterator[torch.Tensor]:
    """Yield the batches of an epoch of so many steps."""
    samples = TensorDataset(torch.randn(2 * steps, 4))
    for (inputs,) in job.batches(DataLoader(samples, batch_size=2, shuffle=True)):
        yield inputs


@pytest.mark.usefixtures("_rare_duties")
@pytest.mark.parametrize(
    ("model_of", "most_files", "most_calls"),
    [(two_layers, 12, 61), (deep, 12, 61), (normalised, 13, 66)],
)
def test_a_plain_step_enters_few_files(
    model_of: Callable[[], nn.Module], most_files: int, most_calls: int
) -> None:
    trace = Trace()
    with training(model_of, log_every_steps=4) as (job, net):
        for inputs in batches(job, 8):
            sys.setprofile(None)
            if job.steps_done == 5:
                sys.setprofile(trace.note)
            loss = net(inputs).square().mean()
            loss.backward()
            job.step(loss)
        sys.setprofile(None)
    assert len(trace.files) <= most_files, trace.files
    assert trace.calls <= most_calls


def test_a_survivor_enters_few_files(tmp_path: Path) -> None:
    variables = {surviving.FOLDER: str(tmp_path)}
    with script_job(tmp_path, ranks=2, script=surviving.__file__, variables=variables) as run:
        log = run_to_its_end(run).log
    [files] = re.findall(r"entered (\d+) files", log)
    assert "attempt 1 of at most" in log
    assert int(files) <= MOST_FILES_OF_A_SURVIVOR, log


@pytest.mark.usefixtures("_rare_duties")
def test_duties_are_done_after_their_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    do = Duties.do

    def note(self: Duties, *arguments: Any) -> None:
        done.append(self._session.run.position.step)
        do(self, *arguments)

    monkeypatch.setattr(Duties, "do", note)
    with training(log_every_steps=4, checkpoint_every_steps=7) as (job, net):
        for inputs in batches(job, 20):
            net(inputs).square().mean().backward()
            job.step()
    # Ranks vote in each step until the first log line.
    assert done == [1, 2, 3, 4, 7, 8, 12, 14, 16, 20]

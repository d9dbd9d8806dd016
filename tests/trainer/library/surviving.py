"""A script in which rank 1 is lost once; rank 0 reports which files of the trainer it enters then.

It counts from the loss to the second step that follows, in all of its threads.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import ddp_trainer
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.support.tracing import Trace

FOLDER = "TEST_SURVIVING_FOLDER"
_LOST_AT, _STEPS = 5, 20


def main() -> None:
    """Train two layers."""
    trace = Trace()
    trace.is_on = False
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(4 * _STEPS, 4))
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for (inputs,) in job.batches(DataLoader(samples, batch_size=2, shuffle=True)):
            trace.is_on = _LOST_AT <= job.steps_done < _LOST_AT + 2
            loss = net(inputs).square().mean()
            if job.rank == 1 and job.steps_done == _LOST_AT:
                _die_once()
            loss.backward()
            job.step(loss)
        if job.rank == 0:
            print(f"entered {len(trace.files)} files: {' '.join(sorted(trace.files))}", flush=True)


def _die_once() -> None:
    mark = Path(os.environ[FOLDER]) / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

"""One rank that trains a transformer with a check after every step, and times both.

    python -m ddp_trainer.launch -- \
        python -m tests.bench.scripts.checks_rank CHECK WIDTH STEPS FILE
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ddp_trainer.library.checks.verification import compared
from ddp_trainer.library.job import Job
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.scripts.clocks import Moment, now

FLAGS = {
    "replicas": "--verify-replicas=1",
    "gradients": "--verify-gradients=1",
    "losses": "--skip-nonfinite-steps=1",
}
"""Each check, and the flag that runs it after every step."""

_WARM_UP_STEPS = 3
_LAYERS, _BATCH, _TOKENS = 6, 8, 64


class TimedJob(Job):
    """Times one kind of check, and the rest of each step."""

    def __init__(self, check: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._check = check
        self.checks: list[Moment] = []
        self.steps: list[Moment] = []
        self._last: Moment | None = None
        self._counted = 0
        steps, loop = self._steps, self._loop
        verify, knows_losses = steps.duties.verify, steps._knows_losses
        probe = loop._probe

        def timed_probe(*arguments: Any) -> Iterator[Any]:
            with self._timed("gradients"):
                yield from probe(*arguments)

        steps.duties.verify = self._timed("replicas")(verify)  # type: ignore[method-assign]
        steps._knows_losses = self._timed("losses")(knows_losses)  # type: ignore[method-assign]
        loop._probe = timed_probe  # type: ignore[assignment, method-assign]

    def step(self, *arguments: Any, **options: Any) -> bool:
        taken = super().step(*arguments, **options)
        if taken:
            present, new = now(), self.checks[self._counted :]
            if self._last is not None:
                for each in (self._last, *new):
                    present -= each
                self.steps.append(present)
            self._last, self._counted = now(), len(self.checks)
        return taken

    @contextmanager
    def _timed(self, check: str) -> Iterator[None]:
        began = now()
        yield
        if check == self._check:
            self.checks.append(now() - began)


def main(check: str, width: int, steps: int, results: Path) -> None:
    """Train; rank 0 writes the milliseconds of each step and check, and the bytes compared."""
    environment = Environment.from_env(os.environ)
    log_to_stdout(f"rank {environment.rank}")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    samples = TensorDataset(torch.randn(_BATCH, _TOKENS, width).repeat(2 * steps, 1, 1))
    options = Options.parse([FLAGS[check], "--checkpoint-every-steps=0"])
    job = TimedJob(check, environment, options, RankReport(os.environ, rank=environment.rank))
    with job.joined({"model": model, "optimizer": optimizer}):
        net = job.wrap(model)
        for _ in job.epochs(1, max_steps=steps):
            for (inputs,) in job.batches(DataLoader(samples, batch_size=_BATCH)):
                loss = net(inputs).square().mean()
                loss.backward()
                if job.step(loss):
                    optimizer.zero_grad()
    if environment.rank == 0:
        found = {
            "bytes": sum(tensor.nbytes for tensor in compared([model], [optimizer])),
            "steps": _milliseconds(job.steps),
            "checks": _milliseconds(job.checks),
        }
        results.write_text(json.dumps(found))


def _milliseconds(spans: list[Moment]) -> dict[str, list[float]]:
    after = spans[_WARM_UP_STEPS:]
    return {
        "wall": [span.wall * 1e3 for span in after],
        "cpu": [span.cpu * 1e3 for span in after],
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    end_process(0)  # as the trainer's ranks do

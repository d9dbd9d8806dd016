"""One rank that trains in turns with the trainer's loop and with one written by hand.

    python -m ddp_trainer.launch -- python -m tests.bench.loop_rank WORKLOAD STEPS PAIRS FILE

Both loops share processes and process group, so that all that differs between them is themselves.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ddp_trainer import workloads
from ddp_trainer.library.job import Job
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.workloads.base import Samples, Workload

from tests.bench import bare_ddp

_WARM_UP_STEPS = 15
"""DDP lays out its buckets in the first; votes find their pace at the end of the first interval."""
_TEST_SAMPLES = 32


class StampedJob(Job):
    """Notes when each step is complete."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.complete: list[bare_ddp.Moment] = []

    def step(self, *arguments: Any, **options: Any) -> bool:
        taken = super().step(*arguments, **options)
        if taken:
            self.complete.append(bare_ddp.now())
        return taken


def main(name: str, steps: int, pairs: int, results: Path) -> None:
    """Measure; rank 0 writes what a step of either loop takes, for each pair."""
    environment = Environment.from_env(os.environ)
    log_to_stdout(f"rank {environment.rank}")
    world_size = environment.placement.world_size
    workload = cut(workloads.load(name), train=steps * bare_ddp.BATCH_SIZE * world_size)
    flags = ["--epochs=1", "--checkpoint-every-steps=0", f"--batch-size={bare_ddp.BATCH_SIZE}"]
    options = Options.parse([*flags, f"--log-every-steps={bare_ddp.LOG_EVERY_STEPS}"])
    found = []
    for i in range(pairs):
        times = {}
        learner = Learner.of(workload, options, world_size=world_size, device=torch.device("cpu"))
        report = RankReport(os.environ, rank=environment.rank)
        with tempfile.TemporaryDirectory() as folder:
            # For its history; nothing is saved before the end.
            placement = replace(environment.placement, checkpoint_dir=Path(folder))
            job = StampedJob(replace(environment, placement=placement), options, report)
            with job.joined(learner.parts()):
                for ours in (i % 2 == 0, i % 2 == 1):  # neither is always the first
                    job.sum(0.0)
                    if ours:
                        train(job, learner, options)
                    complete = job.complete if ours else bare_ddp.train(workload, epochs=1)
                    times[ours] = a_step(complete, steps)
        found.append({"bare": times[False], "trainer": times[True]})
    if environment.rank == 0:
        results.write_text(json.dumps(found))


def cut(workload: Workload, *, train: int) -> Workload:
    """The workload with so many training samples, repeated if need be, and few for tests."""
    indices = [index % len(workload.train) for index in range(train)]
    inputs, targets = workload.train.batch(indices)
    samples = Samples(inputs=inputs, targets=targets)
    inputs, targets = workload.test.batch(range(_TEST_SAMPLES))
    tests = Samples(inputs=inputs, targets=targets)
    return replace(workload, train=samples, test=tests)


def a_step(complete: list[bare_ddp.Moment], steps: int) -> dict[str, float]:
    """Milliseconds that a step takes: the mean, without the first ones."""
    assert len(complete) == steps
    first, last, count = complete[_WARM_UP_STEPS], complete[-1], steps - _WARM_UP_STEPS - 1
    return {
        "wall": (last.wall - first.wall) / count * 1e3,
        "cpu": (last.cpu - first.cpu) / count * 1e3,
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    end_process(0)  # as the trainer's ranks do

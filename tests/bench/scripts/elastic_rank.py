"""One rank that trains in turns with the steps of its group, and with those of fixed batches.

    python -m ddp_trainer.launch -- \
        python -m tests.bench.scripts.elastic_rank WORKLOAD STEPS ROUNDS FILE
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ddp_trainer import workloads
from ddp_trainer.library.job import Job
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.workloads.base import Samples, Workload

from tests.bench.scripts.clocks import Moment, now

_BATCH_SIZE = 32
_WARM_UP_STEPS = 15
"""DDP lays out its buckets in the first; votes find their pace at the end of the first interval."""
_TEST_SAMPLES = 32

KINDS = {
    "plain DDP": Batch(),
    "global, 1 shard": Batch(shards=2),
    "global, 1.5 shards": Batch(shards=3),
    "global, 2 shards": Batch(shards=4),
    "logical, 1 shard": Batch(shards=2, exact=True),
    "logical, 2 shards": Batch(shards=4, exact=True),
}
"""By what two ranks compute of a step, each."""


class _StampedJob(Job):
    """Notes when each step is complete."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.complete: list[Moment] = []

    def step(self, *arguments: Any, **options: Any) -> bool:
        taken = super().step(*arguments, **options)
        if taken:
            self.complete.append(now())
        return taken


def main(name: str, steps: int, rounds: int, results: Path) -> None:
    """Measure; rank 0 writes what a step of each kind takes, for each round."""
    environment = Environment.from_env(os.environ)
    log_to_stdout(f"rank {environment.rank}")
    flags = ["--epochs=1", "--checkpoint-every-steps=0", f"--batch-size={_BATCH_SIZE}"]
    found = []
    for number in range(rounds):
        times = {}
        kinds = [*KINDS]
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            times[kind] = _train(name, steps, KINDS[kind], environment, flags)
        found.append(times)
    if environment.rank == 0:
        results.write_text(json.dumps(found))


def _train(
    name: str, steps: int, batch: Batch, environment: Environment, flags: list[str]
) -> dict[str, float]:
    shards = batch.shards or environment.placement.world_size
    workload = _cut(workloads.load(name), train=steps * _BATCH_SIZE * shards)
    logical = batch.shards if batch.exact else 0
    options = Options.parse([*flags, "--log-every-steps=10", f"--logical-shards={logical}"])
    fixed = Batch(shards=0 if batch.exact else batch.shards)
    placement = replace(environment.placement, batch=fixed, checkpoint_dir=None)
    learner = Learner.of(workload, options, world_size=shards, device=torch.device("cpu"))
    report = RankReport(os.environ, rank=environment.rank)
    job = _StampedJob(replace(environment, placement=placement), options, report)
    with job.joined(learner.parts()):
        train(job, learner, options)
    return _a_step(job.complete, steps)


def _cut(workload: Workload, *, train: int) -> Workload:
    """The workload with so many training samples, repeated if need be, and few for tests."""
    indices = [index % len(workload.train) for index in range(train)]
    inputs, targets = workload.train.batch(indices)
    samples = Samples(inputs=inputs, targets=targets)
    inputs, targets = workload.test.batch(range(_TEST_SAMPLES))
    tests = Samples(inputs=inputs, targets=targets)
    return replace(workload, train=samples, test=tests)


def _a_step(complete: list[Moment], steps: int) -> dict[str, float]:
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

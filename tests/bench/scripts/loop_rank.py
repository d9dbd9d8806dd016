"""One rank that trains in turns with the trainer's loop and with one written by hand.

    python -m ddp_trainer.launch -- \
        python -m tests.bench.scripts.loop_rank WORKLOAD STEPS PAIRS FILE

WORKLOAD is a bundled one, or for example `digits+0.006`: each batch then takes 0.006 s to load.

Both loops share processes and process group, so that all that differs between them is themselves.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ddp_trainer import workloads
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.library.job import Job
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.workloads.base import MapSamples, Samples, SampleSet, Workload
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.utils.data import Dataset

from tests.bench.scripts import bare_ddp

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
    known, _, loading_seconds = name.partition("+")
    workload = cut(workloads.load(known), train=steps * bare_ddp.BATCH_SIZE * world_size)
    flags = ["--epochs=1", "--checkpoint-every-steps=0", f"--batch-size={bare_ddp.BATCH_SIZE}"]
    if loading_seconds:
        flags.append(f"--workers={bare_ddp.LOADING_WORKERS}")
        slow = Slow(workload.train, float(loading_seconds) / bare_ddp.BATCH_SIZE)
        workload = replace(workload, train=MapSamples(slow))
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
                    complete = job.complete if ours else by_hand(workload)
                    times[ours] = a_step(complete, steps)
        found.append({"bare": times[False], "trainer": times[True]})
    if environment.rank == 0:
        results.write_text(json.dumps(found))


def by_hand(workload: Workload) -> list[bare_ddp.Moment]:
    """Train without the trainer, in the group that it has formed."""
    group = distributed_c10d._get_default_group()
    assert isinstance(group, ScriptGroup)
    return bare_ddp.train(workload, epochs=1, group=group.formed)


class Slow(Dataset[Any]):
    """Samples that take time to load, as from storage."""

    def __init__(self, samples: SampleSet, seconds: float) -> None:
        self._samples = samples
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self._seconds)
        inputs, targets = self._samples.batch([index])
        return inputs[0], targets[0]


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

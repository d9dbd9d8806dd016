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

import torch
from ddp_trainer import workloads
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport

from tests.bench.scripts import bare_ddp
from tests.bench.scripts.loop_rank import StampedJob, a_step, cut

KINDS = {
    "plain DDP": Batch(),
    "global, 1 shard": Batch(shards=2),
    "global, 1.5 shards": Batch(shards=3),
    "global, 2 shards": Batch(shards=4),
    "logical, 1 shard": Batch(shards=2, exact=True),
    "logical, 2 shards": Batch(shards=4, exact=True),
}
"""By what two ranks compute of a step, each."""


def main(name: str, steps: int, rounds: int, results: Path) -> None:
    """Measure; rank 0 writes what a step of each kind takes, for each round."""
    environment = Environment.from_env(os.environ)
    log_to_stdout(f"rank {environment.rank}")
    flags = ["--epochs=1", "--checkpoint-every-steps=0", f"--batch-size={bare_ddp.BATCH_SIZE}"]
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
    workload = cut(workloads.load(name), train=steps * bare_ddp.BATCH_SIZE * shards)
    logical = batch.shards if batch.exact else 0
    options = Options.parse(
        [*flags, f"--log-every-steps={bare_ddp.LOG_EVERY_STEPS}", f"--logical-shards={logical}"]
    )
    fixed = Batch(shards=0 if batch.exact else batch.shards)
    placement = replace(environment.placement, batch=fixed, checkpoint_dir=None)
    learner = Learner.of(workload, options, world_size=shards, device=torch.device("cpu"))
    report = RankReport(os.environ, rank=environment.rank)
    job = StampedJob(replace(environment, placement=placement), options, report)
    with job.joined(learner.parts()):
        train(job, learner, options)
    return a_step(job.complete, steps)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    end_process(0)  # as the trainer's ranks do

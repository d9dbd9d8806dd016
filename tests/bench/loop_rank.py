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

from ddp_trainer import workloads
from ddp_trainer.collectives.group import Group
from ddp_trainer.library.keeper import Keeper
from ddp_trainer.library.progress import Progress
from ddp_trainer.loop.train import new_run, total_steps, train
from ddp_trainer.membership.world import World
from ddp_trainer.run.run import Position
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.history import History
from ddp_trainer.telemetry.publisher import Publisher
from ddp_trainer.telemetry.status import StatusFile
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import StepTimer, moments_of
from ddp_trainer.workloads.base import Samples, Workload

from tests.bench import bare_ddp

_WARM_UP_STEPS = 15
"""DDP lays out its buckets in the first; votes find their pace at the end of the first interval."""
_TEST_SAMPLES = 32


class StampedProgress(Progress):
    """Notes when each step is complete."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.complete: list[bare_ddp.Moment] = []

    def step(self, position: Position) -> None:
        super().step(position)
        self.complete.append(bare_ddp.now())


def main(name: str, steps: int, pairs: int, results: Path) -> None:
    """Measure; rank 0 writes what a step of either loop takes, for each pair."""
    environment = Environment.from_env(os.environ)
    log_to_stdout(f"rank {environment.rank}")
    world_size = environment.placement.world_size
    workload = cut(workloads.load(name), train=steps * bare_ddp.BATCH_SIZE * world_size)
    world = World(environment, group_timeout_seconds=600, heartbeat_timeout_seconds=10)
    found = []
    with world.formed(timeout_seconds=600) as group:
        for i in range(pairs):
            times = {}
            for ours in (i % 2 == 0, i % 2 == 1):  # neither is always the first
                group.barrier()
                complete = (
                    trainer(workload, environment, group, world)
                    if ours
                    else bare_ddp.train(workload, epochs=1)
                )
                times[ours] = a_step(complete, steps)
            found.append({"bare": times[False], "trainer": times[True]})
        group.barrier()
    if environment.rank == 0:
        results.write_text(json.dumps(found))


def trainer(
    workload: Workload, environment: Environment, group: Group, world: World
) -> list[bare_ddp.Moment]:
    """One epoch as the trainer trains it, with all that it tells of it."""
    flags = ["--epochs=1", f"--log-every-steps={bare_ddp.LOG_EVERY_STEPS}"]
    options = Options.parse([*flags, f"--batch-size={bare_ddp.BATCH_SIZE}"])
    run = new_run(workload, options, world_size=group.size, device=world.device)
    timer = StepTimer(moments_of(world.device))
    steps = total_steps(workload, options, world_size=group.size)
    keeper = Keeper(None, options.checkpoint_every_steps, rank=environment.rank)
    with tempfile.TemporaryDirectory() as folder:
        publisher = None
        if group.rank == 0:
            history = History(Path(folder, "metrics.jsonl"))
            file = StatusFile.from_env(os.environ)
            publisher = Publisher(file, history, timer)
        progress = StampedProgress(
            RankReport(os.environ, rank=group.rank),
            timer,
            keeper,
            publisher,
            log_every_steps=options.log_every_steps,
        )
        progress.begin(run.position, total_steps=steps, epoch_length=len(workload.train))
        train(
            group,
            run,
            workload,
            options,
            keeper=keeper,
            stop=StopSignal(within_seconds=options.stop_within_seconds),
            timer=timer,
            progress=progress,
        )
        progress.close()
    return progress.complete


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

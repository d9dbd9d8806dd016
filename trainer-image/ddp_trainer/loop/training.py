"""What a rank trains, with all that outlives the groups it trains in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ddp_trainer import workloads
from ddp_trainer.collectives.group import Group
from ddp_trainer.data.staging import Stage, copy
from ddp_trainer.library.keeper import Keeper
from ddp_trainer.library.progress import Progress, publisher_of
from ddp_trainer.loop.train import new_run, total_steps, train
from ddp_trainer.run.run import ModelRun, seed_everything
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import StepTimer, moments_of
from ddp_trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Training:
    """A workload, the run that trains it, and how it goes."""

    workload: Workload
    run: ModelRun
    timer: StepTimer
    progress: Progress

    @classmethod
    def begin(
        cls,
        environment: Environment,
        options: Options,
        report: RankReport,
        keeper: Keeper,
        data: Path | None,
        *,
        device: torch.device,
    ) -> Training:
        """Load the workload and make a run at step 0.

        `data`: where the workload's data lies, if it was told.

        Raises:
            ConfigurationError: the workload cannot be had, or not with these options.
        """
        arguments = {"data": str(data)} if data is not None else {}
        seed_everything(options.seed)  # a workload may draw its samples, or split them, at random
        workload = workloads.load(options.workload, {**options.workload_options, **arguments})
        world_size = environment.placement.world_size
        timer = StepTimer(moments_of(device))
        return cls(
            workload=workload,
            run=new_run(workload, options, world_size=world_size, device=device),
            timer=timer,
            progress=Progress(
                report,
                timer,
                keeper,
                publisher_of(environment, timer),
                log_every_steps=options.log_every_steps,
            ),
        )

    def go_on(self, group: Group, options: Options, keeper: Keeper, stop: StopSignal) -> None:
        """Train in a group from where the run stands to the end; raises what `train` does."""
        position = self.run.position
        steps = total_steps(self.workload, options, world_size=group.size, position=position)
        self.progress.begin(position, total_steps=steps, epoch_length=len(self.workload.train))
        train(
            group,
            self.run,
            self.workload,
            options,
            keeper=keeper,
            stop=stop,
            timer=self.timer,
            progress=self.progress,
        )
        self.progress.finished()

    def pause(self) -> int:
        """The group is broken; returns how many steps are complete."""
        self.progress.pause()
        return self.run.position.step


def staged(environment: Environment, options: Options, group: Group | None = None) -> Path | None:
    """Where the workload's data lies, brought there first if that is asked for.

    With a `group` it is rank 0 that reads it; a collective.
    """
    staging = options.staging
    if staging.stage_dir is None or staging.data is None:
        return staging.data
    stage = Stage(
        staging.stage_dir,
        local_rank=environment.local_rank,
        timeout_seconds=staging.stage_timeout_seconds,
    )
    build = workloads.builder(options.workload) or copy
    if group is None:
        return stage.bring(staging.data, build=build)
    return stage.receive(group, staging.data, build=build)

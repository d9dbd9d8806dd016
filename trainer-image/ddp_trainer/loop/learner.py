"""The bundled loop's model, optimizer, scheduler and scaler, made from a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer import workloads
from ddp_trainer.devices.hardware import check_abilities, make_deterministic, prepare_model
from ddp_trainer.devices.precision import gradient_scaler
from ddp_trainer.loop.optimization import optimizer_of, scheduler_of
from ddp_trainer.loop.schedule import Course, Schedule
from ddp_trainer.run.seeds import seed_everything
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Learner:
    """The objects that training changes, at step 0; the same on all ranks."""

    workload: Workload
    model: nn.Module
    optimizer: Optimizer
    scheduler: Schedule | LRScheduler
    scaler: torch.amp.GradScaler | None = None

    @classmethod
    def new(cls, environment: Environment, options: Options, *, device: torch.device) -> Self:
        """Load the workload that the options name, and create the objects that train it.

        Raises:
            ConfigurationError: the workload cannot be loaded, or the device or this machine does
                not support an option.
        """
        seed_everything(options.seed)  # a workload may draw or split its samples at random
        workload = workloads.load(options.workload, options.workload_options)
        placement = environment.placement
        batch = placement.batch.with_logical_shards(options.optimization.logical_shards)
        shards = batch.shards or placement.world_size
        return cls.of(workload, options, world_size=shards, device=device)

    @classmethod
    def of(
        cls, workload: Workload, options: Options, *, world_size: int, device: torch.device
    ) -> Self:
        """Create the objects that train a workload.

        Raises:
            ConfigurationError: the device or this machine does not support an option.
        """
        check_abilities(options, device)
        if options.hardware.deterministic:
            make_deterministic()
        seed_everything(options.seed)
        model = prepare_model(workload.model(), options, device)
        optimizer = optimizer_of(workload, model, options.optimization)
        course = Course(
            epochs=options.epochs,
            epoch_length=len(workload.train),
            step_size=options.step_size * world_size,
            ranks=world_size,
            max_steps=options.max_steps,
        )
        return cls(
            workload=workload,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler_of(workload, optimizer, options.optimization, course),
            scaler=gradient_scaler(options.optimization.precision, device),
        )

    def parts(self) -> dict[str, Any]:
        """Return the stateful parts of the training, by their names in checkpoints."""
        parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
        }
        return {name: part for name, part in parts.items() if part is not None}

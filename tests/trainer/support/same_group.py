"""Jobs of ranks that keep their group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.devices.gate import Gate
from ddp_trainer.library.job import Job
from ddp_trainer.library.sharded.device_mesh import release_default_group
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore


class SameGroup(GroupFormer):
    """A world that always returns the same group."""

    def __init__(self, group: Group, environment: Environment) -> None:
        self.group = group
        self.current_assignment = CurrentAssignment(environment)

    @contextmanager
    def formed(self, **_: Any) -> Iterator[Group]:
        yield self.group


@contextmanager
def group_of_one(failure: Callable[[], Exception | None] = lambda: None) -> Iterator[Group]:
    """Form a group of this process alone; `failure` returns the error that broke it."""
    release_default_group()  # of a training that has ended in this process
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield Group(
            rank=0,
            size=1,
            device=torch.device("cpu"),
            pending=PendingWork(),
            gate=Gate(None, failure, timeout_seconds=1),
        )
    finally:
        dist.destroy_process_group()


def job_in(group: Group, options: Options) -> Job:
    """Return a job of a group's ranks that saves nothing."""
    environment = Environment.from_env({**os.environ, "DDP_CHECKPOINT_DIR": ""})
    job = Job(environment, options, RankReport({}, rank=group.rank))
    job._session.world = SameGroup(group, environment)
    return job

"""Jobs of ranks that have met already, and form no other group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddp_trainer.collectives.group import Group
from ddp_trainer.library.job import Job
from ddp_trainer.membership.world import World
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport


class SameGroup(World):
    """Ranks that meet in the group that they have."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @contextmanager
    def formed(self, **_: Any) -> Iterator[Group]:
        yield self.group


def job_in(group: Group, options: Options) -> Job:
    """A job of the ranks of a group, of which nothing is saved."""
    environment = Environment.from_env({**os.environ, "DDP_CHECKPOINT_DIR": ""})
    job = Job(environment, options, RankReport({}, rank=group.rank))
    job._world = SameGroup(group)
    return job

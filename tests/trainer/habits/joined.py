"""Runs one loop with the trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import ddp_trainer

from tests.trainer.habits.drifting import BY_NAME
from tests.trainer.habits.loops import LOOPS
from tests.trainer.habits.registry import digest

HABIT_VARIABLE = "TEST_HABIT"


@contextmanager
def join(**settings: Any) -> Iterator[Any]:
    """Join as a script does; three ranks keep DDP's first buckets, as in `plain`."""
    with ddp_trainer.join(
        **settings, group_timeout_seconds=20, max_reforms=100, checkpoint_dir=""
    ) as job:
        if job.world_size > 2:
            object.__setattr__(job, "wrap", partial(job.wrap, find_unused_parameters=True))
        yield job
        os.environ["TEST_RANK"] = str(job.rank)


def main(arguments: Sequence[str]) -> None:
    del arguments
    models = {**LOOPS, **BY_NAME}[os.environ[HABIT_VARIABLE]](join)
    rank = int(os.environ["TEST_RANK"])
    print(f"rank {rank} ends with {digest(models, with_buffers=rank == 0)}", flush=True)

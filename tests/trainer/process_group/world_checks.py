"""Checks that three ranks make together.

In each: `python -m tests.trainer.process_group.world_checks FOLDER`
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.library import state_transfer
from ddp_trainer.library.job import Job
from ddp_trainer.library.state_transfer import transfer_state
from ddp_trainer.loop.train import evaluate
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process
from ddp_trainer.workloads.base import Samples, Workload
from torch import Tensor, nn

from tests.trainer.support.pods import assert_same
from tests.trainer.support.same_group import job_in


def score(
    group: Group,
    size: int,
    batch_size: int,
    *,
    model: nn.Module | None = None,
    prepare: Callable[[Job], None] = lambda _: None,
) -> float:
    """Return the score over this number of test samples, each with a different score."""
    samples = Samples(inputs=torch.arange(size).float(), targets=torch.ones(size))
    workload = Workload(
        train=samples,
        test=samples,
        model=nn.Identity,
        loss=lambda outputs, _: outputs.mean(),
        # A different score for every sample: one left out or counted twice changes the mean.
        score=lambda outputs, _: outputs**2,
    )
    options = Options.parse([f"--evaluation-batch-size={batch_size}"])
    model = model or nn.Identity()
    job = job_in(group, options)
    prepare(job)
    with job.joined({"model": model}):
        return evaluate(job, model, workload, options)


class ToldError(Exception):
    """The ranks have voted to stop."""


class Slow(nn.Module):
    """Samples so slow that ranks vote after each batch."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.batches = 0
        self._group = group
        self._job: Job | None = None

    def know(self, job: Job) -> None:
        """Raise an error: this job stops that way."""
        self._job = job
        job._session.save_and_stop = self._stop  # type: ignore[method-assign]

    def forward(self, inputs: Tensor) -> Tensor:
        assert self._job is not None
        self.batches += 1
        time.sleep(0.3)
        if self._group.rank == 1 and self.batches == 2:
            self._job._session.stop.told_at = 0.0
        return inputs

    def _stop(self) -> None:
        raise ToldError


def batches_before_all_stop(group: Group) -> int:
    """Evaluate three times; rank 1 receives a stop signal in the second one."""
    model = Slow(group)
    try:
        score(group, 1800, 256, model=model, prepare=model.know)
    except ToldError:
        return model.batches
    return -1


def shared_by_rank_1(group: Group) -> list[object]:
    """Share tensors of several types from rank 1."""
    tensors = [
        torch.full((2, 2), 1.0 + group.rank).t(),
        torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        * (group.rank == 1),
        torch.tensor(group.rank == 1),
        torch.tensor([10, 20]) + group.rank,
        torch.tensor([30]) + group.rank,
    ]
    group.broadcast_tensors(*tensors, source=1)
    return [tensor.tolist() for tensor in tensors]


class Odd(nn.Module):
    """Tensors of all kinds; some are no parameters."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.large = nn.Parameter(torch.randn(40, 41))
        self.strided = nn.Parameter(torch.randn(7, 5).t())
        self.register_buffer("scalar", torch.tensor(rank))
        self.register_buffer("flags", torch.rand(9) > 0.5)
        self.register_buffer("short", torch.randn(3, dtype=torch.bfloat16))
        self.register_buffer("empty", torch.zeros(0, 4))


def handed_over(group: Group) -> list[object]:
    """Rank 1 has three steps, rank 2 has another run's state, rank 0 is new."""
    state_transfer.BUCKET_BYTES = 1000  # so that most tensors travel in parts, and some together
    model = Odd(group.rank)
    optimizer = torch.optim.AdamW(model.parameters())
    run = TrainState({"model": model, "optimizer": optimizer}, seed=0, device=group.device)
    places = [tensor.data_ptr() for tensor in model.state_dict().values()]
    for _ in range(3 * (group.rank == 1)):
        (model.large.sum() + model.strided.square().sum()).backward()  # type: ignore[no-untyped-call]
        run.updates.complete_step(5)
    run.answers = {(2, 3, 0): [[1.5]]} if group.rank == 1 else {}
    before = copy.deepcopy(run.full_state_dict())
    transfer_state(run, group, source=1, lacks_it=group.rank == 0)
    assert places == [tensor.data_ptr() for tensor in model.state_dict().values()]
    if group.rank != 0:
        assert_same(run.full_state_dict(), before)
        assert not run.is_torn
    digest = hashlib.sha256()
    state = run.full_state_dict()
    for part in (state["model"].values(), *map(dict.values, state["optimizer"]["state"].values())):
        for tensor in part:
            digest.update(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return [digest.hexdigest(), run.position.step, list(run.answers.items())]


def main(folder: Path) -> None:
    """Write this rank's results to a file."""
    environment = Environment.from_env(os.environ)
    world = GroupFormer(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=10)
    with world.formed(timeout_seconds=60) as group:
        result: dict[str, object] = {
            "scores": {
                f"{size} by {batch_size}": score(group, size, batch_size)
                for size in (1, 2, 3, 10, 700)
                for batch_size in (1, 7, 256)
            },
            "stopped": batches_before_all_stop(group),
            "shared": shared_by_rank_1(group),
            "sum": group.sum(1.0, group.rank),
            "compared": [
                group.compare(1.0, group.rank, among=5 - abs(group.rank - at)) for at in (0, 1, 0.5)
            ],
            "broadcast": [
                group.broadcast(
                    f"from rank {source}".encode() * (group.rank == source), source=source
                ).decode()
                for source in range(group.size)
            ],
            "handed over": handed_over(group),
            "nothing": group.broadcast(None).decode(),
            "gathered": [part.decode() for part in group.gather(b"x" * (3 * group.rank + 1))],
        }
    names = {"ddp: sends heartbeats", "ddp: watches rank 0"}
    result["threads"] = [thread.name for thread in threading.enumerate() if thread.name in names]
    (folder / f"rank-{environment.rank}").write_text(json.dumps(result))
    end_process(0)  # threads of the group could abort the interpreter's shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]))

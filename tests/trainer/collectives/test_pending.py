"""No rank waits for a message that is never complete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.process_group.failures import is_lost_peer
from torch.futures import Future

from tests.trainer.support.pods import job

INSTEAD = torch.full((1,), 7.0)


@pytest.mark.parametrize("value", [torch.ones(1), [torch.ones(1)]], ids=["hook's", "collective's"])
def test_a_guarded_future_has_its_value(value: Any) -> None:
    future: Future[Any] = Future()
    pending = PendingWork()
    guarded = pending.guard(future, instead=INSTEAD)
    assert not guarded.done()
    future.set_result(value)
    assert guarded.wait() == 1
    assert pending.failure is None


@pytest.mark.parametrize("before", [True, False], ids=["given up before", "given up after"])
def test_a_guarded_future_ends_with_the_group(before: bool) -> None:
    pending, future = PendingWork(), Future[torch.Tensor]()
    if before:
        pending.give_up("rank 1 is gone")
    guarded = pending.guard(future, instead=INSTEAD)
    if not before:
        pending.give_up("rank 1 is gone")
    assert guarded.wait() == 7
    assert isinstance(pending.failure, BrokenGroupError)
    future.set_result(torch.ones(1))  # as when gloo's own timeout ends it, long after
    assert guarded.wait() == 7


def test_a_collective_that_could_not_begin_is_a_failure() -> None:
    pending = PendingWork()
    pending.fail(RuntimeError("no connection"))
    pending.fail(RuntimeError("no connection either"))
    assert str(pending.failure) == "no connection"


def test_the_first_failure_is_kept() -> None:
    source: Future[torch.Tensor] = Future()

    def fail(_: Future[torch.Tensor]) -> torch.Tensor:
        raise ValueError("a hook's own mistake")

    pending, failing = PendingWork(), source.then(fail)
    guarded = pending.guard(failing, instead=INSTEAD)
    source.set_result(torch.ones(1))
    pending.give_up("rank 1 is gone")
    assert guarded.wait() == 7
    assert "a hook's own mistake" in str(pending.failure)
    assert pending.failure is not None
    assert not is_lost_peer(pending.failure)


RANK_PROGRAM = """
import os, signal, sys, time
import torch
from torch import distributed as dist
from ddp_trainer.settings.environment import Environment
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.settings.training import DDPOptions
from ddp_trainer.process_group.world import GroupFormer

environment = Environment.from_env(os.environ)
world = GroupFormer(environment, group_timeout_seconds=600, heartbeat_timeout_seconds=2)
large = torch.zeros(100_000_000)


class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(large)

    def forward(self, x):
        return (self.weight * x).sum()


try:
    with world.formed(timeout_seconds=60) as group:
        if sys.argv[1] == "sharing":
            if environment.rank == 0:
                dist.broadcast(large, src=0, async_op=True)
                time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            group.broadcast_tensors(large)
            group.gate.wait()
        if sys.argv[1] == "backward":
            model = group.wrap(Large(), DDPOptions(gradient_compression=sys.argv[2]))
            loss = model(torch.ones(1))
            if environment.rank == 0:
                dist.all_reduce(large, async_op=True)
                time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()  # ends like any other
            group.gate.wait()
except BrokenGroupError as error:
    print("broken:", error, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("moment", ["sharing none", "backward bf16"])
def test_a_rank_dies_with_a_message_half_sent(moment: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANK_PROGRAM)
    with job(tmp_path) as large:
        pods = large.start_all("--", sys.executable, str(program), *moment.split())
        assert pods[0].wait() == 128 + 9, pods[0].log
        assert pods[1].wait() == 0, pods[1].log
        assert "broken: " in pods[1].log

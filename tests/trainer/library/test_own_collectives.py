"""Collectives that a script calls by itself: a loss ends no rank but the lost one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.exit_codes import ExitCode
from torch import distributed as dist
from torch import nn

from tests.trainer.library.runs import Undisturbed, log_of, run_with_faults
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same
from tests.trainer.support.pods import job as pods_job

RANKS = 3
EPOCHS = 7
STEPS = 15
"""Steps of an epoch: ceil(ceil(1438 / 3) / 32)."""
FLAGS = ("--epochs", str(EPOCHS), "--group-timeout-seconds", "1000")
"""No loss is noticed by the timeout of the group."""


def plan_for(rank: int) -> list[FaultAt]:
    """Plan a fault before each of the script's collectives, once between any two steps."""
    in_the_loop = [("within a step", 4), ("after a step", 8), ("before an epoch", STEPS)]
    at_the_end = ["barrier", "evaluation", "gathering", "between two sums", "in a smaller group"]
    if rank == 0:  # no member
        at_the_end.remove("in a smaller group")
    ends = [(point, (epoch + 2) * STEPS) for epoch, point in enumerate(at_the_end)]
    points = [*in_the_loop, *ends, ("after training", EPOCHS * STEPS)]
    later = [FaultAt(rank=rank, point=point, step=step) for point, step in points]
    return [FaultAt(rank=rank, point="before training"), *later]


def printed(run: Job) -> list[str]:
    """Return the printed epochs and the end of the script; the same on all ranks."""
    epochs = dict.fromkeys(re.findall(r"epoch \d+: \(.*", log_of(run)))
    return [*epochs, *sorted(set(re.findall(r"ends with \w+", log_of(run))))]


def nightly(rank: int, device: str) -> object:
    return pytest.param(rank, device, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("rank", "device"),
    [
        (0, "stream"),
        (RANKS - 1, "cpu"),
        *(nightly(*both) for both in ((0, "cpu"), (1, "cpu"), (1, "stream"), (2, "stream"))),
    ],
)
def test_no_other_rank_ends_when_one_is_lost(
    rank: int, device: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    plan = plan_for(rank)
    expected = undisturbed("collectives", *FLAGS, ranks=RANKS)
    actual = run_with_faults(
        tmp_path, plan, *FLAGS, ranks=RANKS, device=device, script="collectives"
    )
    assert log_of(actual).count("restarting it") == len(plan), log_of(actual)
    assert printed(actual) == printed(expected)
    last = EPOCHS * STEPS
    assert_same(actual.state(last), expected.state(last))


def test_a_script_that_wraps_its_model_itself_gets_a_remedy(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import ddp_trainer, torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with ddp_trainer.join(model=model, optimizer=optimizer):\n"
        "    DistributedDataParallel(model)\n"
    )
    with pods_job(tmp_path, nodes=1, local_world_size=2) as job:
        [pod] = job.start_all("--", sys.executable, str(program))
        assert pod.wait() == ExitCode.CONFIGURATION
    assert "create it with job.wrap(model), which accepts its arguments" in pod.message["error"]


def sum_with_lost_ranks() -> None:
    """Join, and use a group with members that the job no longer has."""
    with ddp_trainer.join(model=nn.Linear(1, 1)):
        group = dist.new_group([0])
        assert isinstance(group, ScriptGroup)
        group.ranks = (0, 3)
        dist.all_reduce(torch.ones(1), group=group)


def test_a_rank_restarts_when_members_of_its_group_no_longer_exist() -> None:
    with pytest.raises(SystemExit) as ended:
        sum_with_lost_ranks()
    assert ended.value.code == ExitCode.NEW_PROCESS
    message = r"this is rank 0 of 1, and the script made a group of \[0, 3\]"
    assert re.search(message, str(ended.value.__cause__))

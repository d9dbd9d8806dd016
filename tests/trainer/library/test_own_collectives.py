"""Collectives that a script calls by itself: a loss ends no rank but the lost one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.exit_codes import ExitCode
from torch import distributed as dist
from torch import nn

from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, Pod, assert_same
from tests.trainer.support.pods import job as pods_job

RANKS = 3
EPOCHS = 6
STEPS = 15
"""Steps of an epoch: ceil(ceil(1438 / 3) / 32)."""

pytestmark = [pytest.mark.timeout(600)]


def plan_for(rank: int) -> list[FaultAt]:
    """Plan a death before each of the script's collectives, once between any two steps."""
    in_the_loop = [("within a step", 4), ("after a step", 8), ("before an epoch", STEPS)]
    at_the_end = ["barrier", "evaluation", "gathering", "in a smaller group"]
    if rank == 0:  # no member
        at_the_end.remove("in a smaller group")
    ends = [(point, (epoch + 2) * STEPS) for epoch, point in enumerate(at_the_end)]
    points = [*in_the_loop, *ends, ("after training", EPOCHS * STEPS)]
    later = [FaultAt(rank=rank, point=point, step=step) for point, step in points]
    return [FaultAt(rank=rank, point="before training"), *later]


def run(folder: Path, *, device: str, plan: list[FaultAt]) -> tuple[Job, Pod]:
    """Run the script to its end."""
    variables = fault_injection.environment(plan, folder / "faults")
    with script_job(
        folder, ranks=RANKS, device=device, script="collectives", variables=variables
    ) as job:
        return job, run_to_its_end(job, "--epochs", str(EPOCHS))


def printed(pod: Pod) -> list[str]:
    """Return the printed epochs and the end of the script; the same on all ranks."""
    epochs = dict.fromkeys(re.findall(r"epoch \d+: \(.*", pod.log))
    return [*epochs, *sorted(set(re.findall(r"ends with \w+", pod.log)))]


Reference = Callable[[str], tuple[Job, Pod]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return an undisturbed run on each device."""
    known: dict[str, tuple[Job, Pod]] = {}

    def on(device: str) -> tuple[Job, Pod]:
        if device not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{device}")
            known[device] = run(folder, device=device, plan=[])
        return known[device]

    return on


@pytest.mark.parametrize("device", ["cpu", "stream"])
@pytest.mark.parametrize("rank", range(RANKS))
def test_no_other_rank_ends_when_one_is_lost(
    rank: int, device: str, tmp_path: Path, undisturbed: Reference
) -> None:
    plan = plan_for(rank)
    expected, peace = undisturbed(device)
    wounded, pod = run(tmp_path, device=device, plan=plan)
    fault_injection.assert_all_happened(plan, tmp_path / "faults", pod.log)
    assert pod.log.count("restarting it") == len(plan), pod.log
    assert "resuming from checkpoint" not in pod.log
    assert printed(pod) == printed(peace)
    last = EPOCHS * STEPS
    assert_same(wounded.state(last), expected.state(last))


def test_a_script_that_wraps_its_model_by_itself_is_told_how_to(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import ddp_trainer, torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with ddp_trainer.join(model=model, optimizer=optimizer):\n"
        "    DistributedDataParallel(model)\n"
    )
    with pods_job(tmp_path, nodes=1, local_world_size=2, imports_torch=True) as job:
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

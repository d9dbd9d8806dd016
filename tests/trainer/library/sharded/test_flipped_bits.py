"""Bits flip in a sharded training; the ranks find them and return, and no result changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.exit_codes import ExitCode

from tests.trainer.library.runs import Undisturbed, log_of, run_to_its_end, script_job
from tests.trainer.library.sharded.flipped import Kind, Plan
from tests.trainer.library.sharded.sharding import NEEDS_TORCH

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(3600)]
SCRIPT = "sharded flips"
FLAGS = ("--heartbeat-timeout-seconds", "0")

Ends = Callable[[Plan, int], list[str]]


def planned(folder: Path, kind: Kind, **more: Any) -> Plan:
    return Plan(kind=kind, folder=str(folder), **more)


def run(plan: Plan, ranks: int) -> str:
    """Run to the end in one pod, in which all processes stay; return the log."""
    folder, variables = Path(plan.folder), plan.variables()
    with script_job(folder, ranks=ranks, script=SCRIPT, variables=variables) as job:
        log = run_to_its_end(job, "--max-restarts", "0", *FLAGS).log
    assert len([*folder.glob("flip-*")]) == plan.flips
    return log


def ends_of(*logs: str) -> list[str]:
    """Return what the ranks printed at their end."""
    return sorted(end for log in logs for end in re.findall(r"rank \d ends with \w+", log))


@pytest.fixture
def ends(undisturbed: Undisturbed) -> Ends:
    """Return a function that gives the ends of the same training without flips and checks."""

    def of(plan: Plan, ranks: int) -> list[str]:
        clean = Plan(
            kind="gradient", flips=0, folder="", steps=plan.steps, shard_size=plan.shard_size
        )
        run = undisturbed(SCRIPT, *FLAGS, ranks=ranks, variables=clean.variables())
        found = ends_of(log_of(run))
        assert len(found) == ranks
        return found

    return of


def lasting(folder: Path, parts: int) -> list[int]:
    """Return the steps after which parts differed, by digests that the script has written."""
    files = [each.read_text().splitlines() for each in sorted(folder.glob("digests-*"))]
    found = []
    for lines in zip(*files, strict=True):
        steps, digests = zip(*(line.split() for line in lines), strict=True)
        [step] = {*steps}
        if any(len({*digests[part::parts]}) > 1 for part in range(parts)):
            found.append(int(step))
    return found


def reported(log: str) -> list[int]:
    """Return the steps after which rank 0 reported a difference and returned."""
    return [
        int(step)
        for step in re.findall(r"\[rank 0\].* the ranks differ after step (\d+).*; returning", log)
    ]


@pytest.mark.parametrize("flips", [6, pytest.param(250, marks=pytest.mark.nightly)])
def test_lasting_flips_in_replicas_of_parts_are_found(tmp_path: Path, flips: int) -> None:
    """A step follows each flip before the ranks are compared."""
    steps = 4 * flips + 8
    plan = planned(tmp_path, "state", flips=flips, steps=steps, shard_size=2, verify_replicas=2)
    log = run(plan, ranks=4)
    lasted, found = lasting(tmp_path, parts=2), reported(log)
    print(f"{flips} flips, {len(lasted)} lasted, {len(found)} found")
    assert found == lasted
    assert len(lasted) > flips / 2


@pytest.mark.parametrize("flips", [6, pytest.param(250, marks=pytest.mark.nightly)])
def test_wrong_gradients_are_found(tmp_path: Path, flips: int, ends: Ends) -> None:
    """Two ranks without replicas, of which none is named."""
    plan = planned(tmp_path, "gradient", flips=flips, steps=4 * flips + 8, verify_gradients=2)
    log = run(plan, ranks=2)
    print(f"{flips} flips, {len(reported(log))} found")
    assert len(reported(log)) == flips
    assert ends_of(log) == ends(plan, 2)


@pytest.mark.parametrize(
    ("kind", "ranks", "shard_size", "checks", "message"),
    [
        (
            "state at rest",
            3,
            None,
            {"verify_replicas": 1},
            "the state of rank 1 has changed since step 7: flipped bits in memory",
        ),
        (
            "state",
            3,
            1,
            {"verify_replicas": 4},
            "rank 1 differs from the other ranks after step 8; last equal at step 4: "
            "flipped bits in memory",
        ),
        pytest.param(
            "gradient",
            4,
            2,
            {"verify_gradients": 4},
            "rank 1 differs from the other ranks after step 8; gradients last equal at step 4: "
            "flipped bits in memory",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["at rest", "replicas", "gradients"],
)
def test_the_faulty_rank_ends_and_the_others_return(
    tmp_path: Path,
    kind: Kind,
    ranks: int,
    shard_size: int | None,
    checks: dict[str, int],
    message: str,
    ends: Ends,
) -> None:
    more: dict[str, Any] = {"flips": 1, "first": 7, "ranks": [1], "steps": 12} | checks
    plan = planned(tmp_path, kind, shard_size=shard_size, **more)
    variables = plan.variables()
    with script_job(tmp_path, ranks=ranks, nodes=ranks, script=SCRIPT, variables=variables) as job:
        first, failed, *others = job.start_all(*FLAGS)
        assert failed.wait() == ExitCode.FLIPPED_BITS, failed.log
        assert failed.message["error"] == message
        successor = job.start(1, *FLAGS)
        for pod in (first, *others, successor):
            assert pod.wait() == 0, pod.log
            assert "restarting it" not in pod.log
        assert ends_of(*(pod.log for pod in job.pods)) == ends(plan, ranks)

"""The result of each fault of a rank, in each kind of training.

NVIDIA's Resiliency Extension has such tests: they inject a list of faults into ranks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.trainer.library.runs import script_job
from tests.trainer.support import fault_injection, faults
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.faults import FAULTS, Outcome
from tests.trainer.support.pods import Job, job

COME_BACK = [
    name for name, fault in FAULTS.items() if fault.joined in (Outcome.AGAIN, Outcome.KILLED)
]
COME_TO_NOTHING = [name for name, fault in FAULTS.items() if fault.joined is Outcome.NOTHING]
GIVEN_UP = [name for name, fault in FAULTS.items() if fault.joined is Outcome.GIVEN_UP]
FLAGS = (
    *("--epochs", "2", "--max-restarts", "100", "--heartbeat-timeout-seconds", "4"),
    *("--group-timeout-seconds", "6", "--max-reforms", "100"),
)


def joined(kind: str, folder: Path, variables: Mapping[str, str]) -> AbstractContextManager[Job]:
    """Return a job of two ranks in one pod that train with the library."""
    if kind == "library":
        return script_job(folder, ranks=2, variables=dict(variables))
    return job(folder, nodes=1, local_world_size=2, extra_environment=variables)


BUNDLED = pytest.param("bundled", marks=pytest.mark.nightly)
"""The bundled trainer uses the library, so it rarely differs."""


@pytest.mark.parametrize("kind", [BUNDLED, "library"])
def test_a_rank_comes_back_after_each_fault(kind: str, tmp_path: Path) -> None:
    plan = [
        FaultAt(rank=1, point="backward", step=2 + 2 * number, action=name)
        for number, name in enumerate([*COME_BACK, *COME_TO_NOTHING])
    ]
    faults = tmp_path / "faults"
    with joined(kind, tmp_path, fault_injection.environment(plan, faults)) as of:
        [pod] = of.start_all(*FLAGS, "--trace-samples", str(of.traces))
        assert pod.wait() == 0, pod.log
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert set(re.findall(r"rank (\d)'s state", pod.log)) == {"0"}, "its process has survived"
        assert pod.log.count("rank 1 has been frozen for 4 s: killing it") >= 2
        assert pod.log.count(": restarting it") == len(COME_BACK), pod.log
        assert re.search(r"rank 1 ended with exit code 0 at step \d+ of 46, before the", pod.log)
        assert "resuming from checkpoint" not in pod.log
        for rank in range(2):
            assert list(of.steps_of(rank)) == list(range(1, 47)), "no step is left out"


@pytest.mark.parametrize("kind", [BUNDLED, "library"])
@pytest.mark.parametrize("name", GIVEN_UP)
def test_a_rank_that_neither_ends_nor_comes_back_is_given_up(
    name: str, kind: str, tmp_path: Path
) -> None:
    plan = [FaultAt(rank=1, point="backward", step=2, action=name)]
    with joined(kind, tmp_path, fault_injection.environment(plan, tmp_path / "faults")) as of:
        short = ("--rendezvous-timeout-seconds", "10", "--stop-within-seconds", "1")
        [pod] = of.start_all(*FLAGS, *short, "--kill-after-seconds", "1")
        assert pod.wait() == 75, pod.log
        fault_injection.assert_all_happened(plan, tmp_path / "faults", pod.log)
        assert "rank 0 waits for rank 1 of 2" in pod.message["error"]


PLAIN = """
import datetime, os, sys
import torch
from torch import distributed as dist
from tests.trainer.support.faults import ACTIONS

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
for step in range(1, 6):
    dist.all_reduce(torch.ones(1))
    if step == 3 and dist.get_rank() == 1:
        ACTIONS[sys.argv[1]]()
dist.destroy_process_group()
print("trained to the end", flush=True)
"""


DAILY = ("exception", "SIGSTOP", "exception in a thread", "exit as if done")
"""One fault for each kind of result."""


@pytest.mark.parametrize(
    "name",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS],
)
def test_a_pod_ends_with_a_plain_scripts_failure(name: str, tmp_path: Path) -> None:
    program, fault = tmp_path / "plain.py", FAULTS[name]
    program.write_text(PLAIN)
    with job(tmp_path, nodes=1, local_world_size=2) as of:
        command = (sys.executable, str(program), name)
        [pod] = of.start_all("--kill-after-seconds", "1", "--", *command)
        assert pod.wait() == fault.code, pod.log
        assert pod.log.count("trained to the end") == (2 if fault.code == 0 else 0)
        if fault.code != 0:
            assert pod.message["rank"] == (0 if fault.is_seen_by_others else 1)


def test_the_page_has_the_table_of_these_faults() -> None:
    page = faults.PAGE.read_text()
    assert page == faults.written(page), f"{faults.PAGE} is out of date: run make generate"

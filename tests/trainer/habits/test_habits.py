"""Loops as people write them end with the bits of plain DistributedDataParallel, ranks lost or not.

A plain script with three ranks is run with `find_unused_parameters`, because torch otherwise lays
out its gradients again after the first step, and then adds up three numbers in another order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from ddp_trainer.exit_codes import ExitCode

from tests.trainer.habits.drifting import BY_NAME, DRIFTING
from tests.trainer.habits.joined import HABIT_VARIABLE
from tests.trainer.habits.loops import LOOPS
from tests.trainer.library.runs import log_of, run_with_faults, script_job
from tests.trainer.support.fault_injection import FaultAt

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "loops.md"
_PLAIN_SECONDS = 600


@pytest.fixture(autouse=True)
def _without_launcher(no_launcher: None) -> None:
    del no_launcher


Plain = Callable[[int], Mapping[str, Mapping[int, str]]]
"""Number of ranks → digests by loop and rank."""


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Return what plain scripts end with; one group of processes runs all loops."""
    folder = tmp_path_factory.mktemp("plain")
    return cache(lambda ranks: _run_plain(ranks, folder))


def _run_plain(ranks: int, folder: Path) -> Mapping[str, Mapping[int, str]]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={ranks}", "-m", "tests.trainer.habits.plain"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    said, errors = folder / f"{ranks}.out", folder / f"{ranks}.err"
    with said.open("w") as stdout, errors.open("w") as stderr:
        ended = subprocess.run(
            command,
            check=False,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            timeout=_PLAIN_SECONDS,
        )
    assert ended.returncode == 0, errors.read_text()[-5000:]
    found: dict[str, dict[int, str]] = {name: {} for name in LOOPS}
    for name, rank, known in re.findall(r"(\w+) rank (\d) ends with (\w+)", said.read_text()):
        found[name][int(rank)] = known
    return found


def test_the_page_lists_all_loops() -> None:
    supported, _, _ = PAGE.read_text().partition("\n## Refused in words\n")
    listed = re.findall(r"^- (.+)$", supported, re.MULTILINE)
    assert sorted(listed) == sorted(name.replace("_", " ") for name in LOOPS)


KILLED = pytest.param(True, id="killed")
UNDISTURBED = pytest.param(False, id="undisturbed", marks=pytest.mark.nightly)


@pytest.mark.parametrize("killed", [KILLED, UNDISTURBED])
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_ends_as_a_plain_one(
    name: str,
    ranks: int,
    killed: bool,
    tmp_path: Path,
    plain: Plain,
) -> None:
    plan = [
        FaultAt(rank=ranks - 1, point="backward", step=3),
        FaultAt(rank=0, point="backward", step=6),
    ]
    run = run_with_faults(
        tmp_path,
        plan if killed else [],
        ranks=ranks,
        script="a habit",
        variables={HABIT_VARIABLE: name},
    )
    ends = re.findall(r"rank (\d) ends with (\w+)", log_of(run))
    assert {int(rank): known for rank, known in ends} == plain(ranks)[name]


@pytest.mark.parametrize("name", BY_NAME)
def test_ranks_that_do_not_do_the_same_are_stopped(name: str, tmp_path: Path) -> None:
    told = DRIFTING[BY_NAME[name]]
    with script_job(tmp_path, ranks=2, script="a habit", variables={HABIT_VARIABLE: name}) as of:
        [pod] = of.start_all()
        assert pod.wait() == ExitCode.CONFIGURATION, pod.log
    assert told in pod.log
    assert "ends with" not in pod.log

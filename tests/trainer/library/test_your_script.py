"""The example scripts recover, and the number of changed lines that they state is true."""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.support.pods import DEADLINE_SECONDS, is_alive, job, until

SCRIPTS = Path(__file__).parents[3] / "trainer-image" / "examples" / "your_script"
NAMES = ["regression", "images"]
MOST_CHANGED_LINES = 12


def lines_of(script: Path) -> list[str]:
    """Strip indentation, which a `with` changes."""
    return [line.strip() for line in script.read_text().splitlines()]


def changed_lines(name: str) -> tuple[int, int]:
    """Return how many lines of a script are new or changed, and how many were removed."""
    before, after = (lines_of(SCRIPTS / when / f"{name}.py") for when in ("before", "after"))
    difference = list(difflib.ndiff(before, after))
    added, removed = (
        sum(line.startswith(f"{sign} ") and bool(line[2:]) for line in difference) for sign in "+-"
    )
    return added, removed


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_of_a_script_change(name: str) -> None:
    added, removed = changed_lines(name)
    assert 0 < added <= MOST_CHANGED_LINES
    row = re.search(rf"`{name}.py`.*\| (\d+) \| (\d+) \|", (SCRIPTS / "README.md").read_text())
    assert row is not None
    assert (int(row[1]), int(row[2])) == (added, removed)


@pytest.mark.parametrize(("name", "imports_torch"), [(name, name == NAMES[0]) for name in NAMES])
def test_a_rank_of_a_script_is_killed_and_comes_back(
    name: str, imports_torch: bool, tmp_path: Path
) -> None:
    """One script starts like a container, with a whole Python in each rank."""
    script = str(SCRIPTS / "after" / f"{name}.py")
    with job(tmp_path, nodes=1, local_world_size=2, imports_torch=imports_torch) as run:
        [pod] = run.start_all("--", sys.executable, script, "--epochs", "40")
        pod.wait_for_log("epoch 1: ")
        victim = pod.pids_of_ranks()[1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: not is_alive(victim), "the rank's death")
        pod.wait_for_log("restarting it, 1 of at most 3")
        pod.wait_for_log("continuing from memory at step")
        # A stopped script saves.
        pod.stop()
        assert pod.wait() in (0, 128 + signal.SIGTERM), pod.log
        assert len(set(re.findall(r"epoch \d+: ", pod.log))) >= 2
        assert pod.message["step"] > 0
        assert pod.message["checkpoint"]["step"] == pod.message["step"]


def test_a_frozen_rank_of_a_script_is_killed_and_comes_back(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1, local_world_size=2) as frozen:
        script = ("-m", "tests.trainer.library.script", "--heartbeat-timeout-seconds", "3")
        slow = ("--step-delay-seconds", "0.1")
        [pod] = frozen.start_all("--", sys.executable, *script, *slow)
        pod.wait_for_log("epoch 0: ")
        os.kill(pod.pids_of_ranks()[1], signal.SIGSTOP)
        pod.wait_for_log("rank 1 has been frozen for 3 s: killing it")
        pod.wait_for_log("continuing from memory at step")
        pod.wait_for_log("epoch 1: ")
        pod.stop()
        assert pod.wait() in (0, 128 + signal.SIGTERM), pod.log


def printed_by(folder: Path, *starter: str, **variables: str) -> str:
    """Run the regression without a launcher; return its output."""
    ran = subprocess.run(
        [sys.executable, *starter, str(SCRIPTS / "after" / "regression.py"), "--epochs", "2"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_torchrun_starts_a_script(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    printed = printed_by(tmp_path, *torchrun)
    assert "group of 2 ranks formed" in printed
    assert printed.count("epoch 1: loss") == 1


def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    assert "epoch 1: loss" in printed_by(tmp_path, DDP_CHECKPOINT_DIR=str(checkpoints))
    assert [path.name for path in checkpoints.glob("step-*")] == ["step-00000128"]

"""Scripts as people have them, ported: ranks die, and all ends as if none had."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.library.runs import script_job
from tests.trainer.support import deaths
from tests.trainer.support.deaths import Death
from tests.trainer.support.pods import Job, assert_same

pytestmark = [pytest.mark.timeout(600)]

RECIPES = Path(__file__).parents[3] / "trainer-image" / "examples" / "your_script" / "recipes"
EVERY_STEP = [
    Death(rank=1, point="backward", step=3),
    Death(rank=0, point="gate", step=6),
    Death(rank=1, point="after the optimizer's step", step=9),
]


def last_state(of: Job) -> Any:
    """What the newest checkpoint holds."""
    steps = [int(path.parent.name.split("-")[1]) for path in of.checkpoints.glob("*/manifest.json")]
    return of.state(max(steps))


def results(log: str) -> set[str]:
    """What the script has printed of its epochs; a rank may print twice what is told twice."""
    return set(re.findall(r"^epoch \d+: .*", log, re.M))


def run(of: Job) -> str:
    """Run a recipe to its end; returns the log."""
    [pod] = of.start_all()
    assert pod.wait() == 0, pod.log
    return pod.log


def assert_survives(
    folder: Path, name: str, *arguments: str, plan: list[Death], resume_at: int
) -> None:
    """Compare an undisturbed run with one that loses ranks, and one that loses all of them."""
    script = shlex.join([str(RECIPES / f"{name}.py"), *arguments])
    with script_job(folder / "peace", ranks=2, script=script) as peaceful:
        expected = results(run(peaceful))
        assert expected
    graves = folder / "graves"
    variables = deaths.environment(plan, graves)
    with script_job(folder / "war", ranks=2, script=script, variables=variables) as wounded:
        log = run(wounded)
        assert deaths.toll(graves) == len(plan), log
        assert "resuming from checkpoint" not in log
        assert results(log) == expected
        assert_same(last_state(wounded), last_state(peaceful))
    slow = Death(rank=0, point="vote", step=resume_at + 2, deed="wait")
    variables = deaths.environment([slow], folder / "slow")
    with script_job(folder / "end", ranks=2, script=script, variables=variables) as ended:
        [pod] = ended.start_all()
        pod.wait_for_log(f"(step {resume_at})")
        for pid in pod.rank_pids():
            os.kill(pid, signal.SIGKILL)
        pod.kill()
        assert "resuming from checkpoint" in run(ended)
        assert_same(last_state(ended), last_state(peaceful))


def test_a_text_file_and_a_trainer_class(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 60)
    assert_survives(tmp_path, "mingpt", "--data", str(text), plan=EVERY_STEP, resume_at=5)

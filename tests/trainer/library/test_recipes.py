"""Ported scripts of real projects: ranks die, and the result is the same as without."""

from __future__ import annotations

import os
import re
import shlex
import signal
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.library.runs import log_of, run_with_faults, script_job
from tests.trainer.library.sharded.sharding import NEEDS_TORCH
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, assert_same

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "your-loop.md"
RECIPES = Path(__file__).parents[3] / "trainer-image" / "examples" / "your_script" / "recipes"
SAVE_EVERY = 5
"""Steps, in all recipes."""
EVERY_STEP = [
    FaultAt(rank=1, point="backward", step=3),
    FaultAt(rank=0, point="gate", step=6),
    FaultAt(rank=1, point="after the optimizer's step", step=9),
]


def results(log: str) -> set[str]:
    """Return the lines that the script has printed on its epochs."""
    return set(re.findall(r"^(?:epoch|validated) .*", log, re.M))


def command(name: str, *arguments: str) -> str:
    """Return the command line of a recipe."""
    return shlex.join([str(RECIPES / f"{name}.py"), *arguments])


def run(of: Job) -> str:
    """Run a recipe to its end; return the log."""
    [pod] = of.start_all()
    assert pod.wait() == 0, pod.log
    return pod.log


def assert_survives(
    folder: Path, script: str, *, plan: Sequence[FaultAt] = EVERY_STEP, ranks: int = 2
) -> Job:
    """Compare a run without faults with one that loses ranks, and one that loses all at once.

    Return the first.
    """
    peaceful = run_with_faults(folder / "undisturbed", [], ranks=ranks, script=script)
    expected = results(log_of(peaceful))
    assert expected
    actual = run_with_faults(folder / "faulty", plan, ranks=ranks, script=script)
    assert results(log_of(actual)) == expected
    assert_same(actual.last_state, peaceful.last_state)
    slow = FaultAt(rank=0, point="vote", step=SAVE_EVERY + 2, action="wait")
    variables = fault_injection.environment([slow], folder / "slow")
    with script_job(folder / "end", ranks=ranks, script=script, variables=variables) as ended:
        [pod] = ended.start_all()
        pod.wait_for_log(f"(step {SAVE_EVERY})")
        for pid in pod.rank_pids():
            os.kill(pid, signal.SIGKILL)
        pod.kill()
        assert "resuming from checkpoint" in run(ended)
        assert_same(ended.last_state, peaceful.last_state)
    return peaceful


def test_a_text_file_and_a_trainer_class(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 60)
    # After its part of an evaluation, before the sum.
    plan = [
        FaultAt(rank=rank, point="evaluation", step=10 * epoch)
        for epoch, rank in enumerate((1, 0), 1)
    ]
    trained = assert_survives(tmp_path, command("mingpt", "--data", str(text)), plan=plan)
    assert trained.last_state["optimizer"]["param_groups"][0]["lr"] < 1e-3, "the rate has fallen"


@pytest.mark.nightly
def test_meters_that_all_reduce_and_schedules_by_epoch(tmp_path: Path) -> None:
    trained = assert_survives(tmp_path, command("imagenet"))
    [log] = [pod.log for pod in trained.pods]
    newest = max(trained.checkpoints.glob("step-*"))
    alone = {"DDP_CHECKPOINT_DIR": str(trained.checkpoints)}
    script = command("imagenet", "--evaluate")
    with script_job(tmp_path / "evaluate", ranks=2, script=script, variables=alone) as evaluated:
        [again] = results(run(evaluated))
        assert again in results(log)
    script = command("imagenet", "--pretrained", str(newest), "--epochs", "0")
    with script_job(tmp_path / "tune", ranks=2, script=script) as tuned:
        assert "resuming" not in run(tuned)
        assert_same(tuned.last_state["model"], trained.last_state["model"])
        assert tuned.last_state["optimizer"]["state"] == {}


@pytest.mark.nightly
def test_accumulation_and_a_rate_set_by_hand(tmp_path: Path) -> None:
    tokens = tmp_path / "train.bin"
    np.random.default_rng(0).integers(0, 32, 4000, dtype=np.uint16).tofile(tokens)
    assert_survives(tmp_path, command("nanogpt", "--data", str(tokens)), ranks=3)


@pytest.mark.nightly
def test_two_optimizers_and_three_backward_passes(tmp_path: Path) -> None:
    plan = [
        FaultAt(rank=1, point="backward", step=3, turn=0),
        FaultAt(rank=0, point="gate", step=5, turn=1),
        FaultAt(rank=1, point="after a turn", step=7, turn=1),
    ]
    assert_survives(tmp_path, command("dcgan"), plan=plan)


@pytest.mark.nightly
def test_an_average_of_the_weights_and_a_sampler(tmp_path: Path) -> None:
    state = assert_survives(tmp_path, command("timm_style")).last_state
    # As on the page.
    names = {"model", "average", "optimizer", "scheduler"}
    assert state.keys() == names | {"position", "order"}
    place = {"step", "epoch", "samples", "turns", "is_at_end"}
    assert state["position"].keys() == place | {"skipped", "skipped_in_all"}
    assert state["order"].keys() == {"seed", "samples", "readers", "shards"}
    assert "1.weight" in state["model"]


@NEEDS_TORCH
@pytest.mark.nightly
def test_a_sharded_model(tmp_path: Path) -> None:
    """It writes no checkpoints; `test_fsdp` compares its parameters."""
    expected, actual = (
        results(log_of(run_with_faults(folder, plan, ranks=2, script=command("fsdp"))))
        for folder, plan in ((tmp_path / "undisturbed", []), (tmp_path / "faulty", EVERY_STEP[1:]))
    )
    assert len(expected) == 2
    assert actual == expected


def test_each_block_of_the_page_is_part_of_a_script() -> None:
    """The scripts run here or in `test_your_script`."""
    scripts = [*RECIPES.glob("*.py"), *RECIPES.with_name("after").glob("*.py")]
    texts = [script.read_text() for script in scripts]
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 10
    for block in blocks:
        indented = [textwrap.indent(block, " " * 4 * depth) for depth in range(6)]
        assert any(each in text for text in texts for each in indented), block

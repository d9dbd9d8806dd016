"""The scripts of the page `docs/how-to/save-and-resume.md` run, and resume to the same result."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "save-and-resume.md"
FILE, LOAD, SAVE, JOIN = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)

TIMEOUT = 300
"""Seconds: each process imports torch."""


def with_memory() -> str:
    """Return the script with the two blocks that the page adds for copies in memory."""
    first, last = FILE.index("step = 0\n"), FILE.index("\nddp = ")
    whole: str = FILE[:first] + LOAD + FILE[last:]
    return whole.replace("    step += 1\n", "    step += 1\n" + textwrap.indent(SAVE, "    "))


def train(script: str, folder: Path, *, ranks: int, steps: int) -> str:
    """Run the ranks to the end; return rank 0's output."""
    folder.mkdir(exist_ok=True)
    text = script.replace("STEPS = 1000", f"STEPS = {steps}")
    shared = {
        "DDP_CHECKPOINT_DIR": str(folder),
        "DDP_BACKEND": "gloo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env=os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks
    return outputs[0]


@pytest.mark.parametrize(
    ("script", "ranks"), [(FILE, 2), (with_memory(), 1)], ids=["file", "memory"]
)
def test_script_of_the_page_resumes_to_the_same_result(
    script: str, ranks: int, tmp_path: Path
) -> None:
    train(script, tmp_path / "undisturbed", ranks=ranks, steps=300)
    train(script, tmp_path / "stopped", ranks=ranks, steps=100)
    output = train(script, tmp_path / "stopped", ranks=ranks, steps=300)
    assert re.findall(r"(?:resumed at )?step \d+", output) == [
        "resumed at step 100",
        "step 200",
        "step 300",
    ]
    expected, actual = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("undisturbed", "stopped")
    )
    assert actual["step"] == expected["step"] == 300
    assert all(
        torch.equal(actual["model"][key], expected["model"][key]) for key in ("weight", "bias")
    )


def test_script_with_join_runs_and_resumes_at_its_end(tmp_path: Path) -> None:
    variables = os.environ | {"DDP_CHECKPOINT_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", JOIN],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT,
        ).stdout
        for _ in range(2)
    ]
    assert ["resuming from checkpoint" in output for output in outputs] == [False, True]

"""The first minutes of a person who installs the wheels of a release and runs a script of his own.

His torch is in another environment than the command line.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ddp_operator import __version__

from tests import stranger
from tests.local.command import processes_of
from tests.stranger import TORCH, Stranger

# pip fetches the libraries of the command line.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SCRIPT = """\
import argparse
import torch
from torch import distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, steps + 1):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: step {step}", flush=True)
dist.destroy_process_group()
"""
RUN = ("run", "try", "--local", "--replicas", "2", "--script", "train.py", "--")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stranger.install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def person(programs: Path, tmp_path: Path) -> Stranger:
    """A person in a folder with a script; what a run writes is below it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runs").mkdir()
    return Stranger(programs, tmp_path, {"TMPDIR": str(tmp_path / "runs")})


def test_wheels_install_the_command_line(person: Stranger) -> None:
    for name in ("ddp", "kubectl-ddp"):
        version = subprocess.run(
            [name, "--version"],
            executable=person.programs / name,
            env=person.environment(torch=False),
            capture_output=True,
            text=True,
            check=True,
        )
        assert version.stdout == f"ddp-operator {__version__}\n"


def test_script_trains_with_torch_of_another_environment(person: Stranger) -> None:
    ran = person.run(*RUN, "python", "train.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"run by {TORCH}/python" in ran.stdout
    for rank in (0, 1):
        assert f"rank {rank} of 2: step 20\n" in ran.stdout
    assert "try: Succeeded after" in ran.stdout


def test_run_into_head_ends(person: Stranger) -> None:
    line = f"{person.programs}/ddp {' '.join(RUN)} python train.py --steps 1000000 | head -2"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=person.project,
        env=person.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert len(ran.stdout.splitlines()) == 2
    assert (ran.returncode, ran.stderr) == (128 + 13, ""), "ended by the closed pipe, in silence"
    assert processes_of(person.project) == []


def test_typo_in_a_flag_is_named_with_the_right_one(person: Stranger) -> None:
    words = ["--replcas" if word == "--replicas" else word for word in RUN]
    ran = person.run(*words, "python", "train.py")
    assert ran.returncode == 2
    assert "No such option '--replcas'" in ran.stderr
    assert "--replicas" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "torch", "cause", "remedy"),
    [
        (
            ("train.py", "--stps", "3"),
            True,
            "unrecognized arguments: --stps 3",
            "compare the command's arguments with the script's --help",
        ),
        (("trian.py",), True, "can't open file", "send the file with --script trian.py"),
        (
            ("train.py",),
            False,
            "No module named 'torch'",
            "install torch for the Python that runs the job",
        ),
    ],
)
def test_mistake_fails_at_once_with_its_remedy(
    person: Stranger, words: tuple[str, ...], torch: bool, cause: str, remedy: str
) -> None:
    ran = person.run(*RUN, "python", *words, torch=torch)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    _, failed, summary = ran.stdout.partition("try: Failed after")
    assert failed, ran.stdout
    assert cause in summary
    assert remedy in summary
    assert "0 of 3 allowed" in summary

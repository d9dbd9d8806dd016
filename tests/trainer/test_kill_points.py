"""A rank dies at every point of a step, and all end where an undisturbed run ends: to the bit.

The points differ in what the survivors have when it happens: nothing of the step, a part of it, all
of it, or one survivor more than another.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.chaos.blows import blows
from tests.trainer.chaos.disturbance import PATIENCE, STACKS, Disturbance
from tests.trainer.pods import Job, Pod, assert_same, job

pytestmark = [pytest.mark.timeout(600)]

RANKS = 3
LAST_STEP = 30  # 2 epochs of ceil(ceil(1438 / 3) / 32) steps
FATAL_STEP = 9
EVERY_STEP = 3
SEED = 7

SUICIDAL_RANK = """
import os, signal, sys
sys.path.append(os.getcwd())  # for the workload
from ddp_trainer import __main__
from ddp_trainer.checkpoints import checkpoint
from ddp_trainer.collectives.group import Group
from ddp_trainer.loop import train
from ddp_trainer.membership import rendezvous
from ddp_trainer.run import run
import torch

point, fatal_step = sys.argv[1], int(sys.argv[2])
steps = 0  # completed by this process, which is there from the beginning


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_due(*_):
    if steps == fatal_step - 1:
        die()


def patched(owner, name, *, before=None, after=None):
    original = getattr(owner, name)

    def replacement(*arguments, **options):
        if before:
            before(*arguments)
        result = original(*arguments, **options)
        if after:
            after(*arguments)
        return result

    setattr(owner, name, replacement)


def count(*_):
    global steps
    steps += 1


def hook_parameters(group, model, *_):
    # The gradient of one parameter in the middle is ready: some buckets may be on their way.
    parameters = list(model.parameters())
    parameters[len(parameters) // 2].register_hook(die_if_due)


if point == "vote":
    patched(Group, "start_sum", after=die_if_due)
elif point == "backward":
    patched(Group, "wrap", before=hook_parameters)
elif point == "before the optimizer's step":
    patched(run.Run, "complete_step", before=die_if_due)
elif point == "within the optimizer's step":
    from torch.optim import adam

    patched(adam, "adam", after=die_if_due)
elif point == "after the optimizer's step":
    patched(run.Position, "advance", after=die_if_due)
elif point == "evaluation":
    patched(train, "evaluate", before=lambda *_: die())
elif point == "within a save":
    patched(checkpoint, "write_file", after=lambda *_: die())
elif point == "the state's transfer":
    patched(Group, "broadcast_large", before=lambda *_: die())
elif point == "rendezvous":
    patched(rendezvous.Rendezvous, "meet", after=lambda *_: die())
else:
    assert point == "never", point
patched(run.Run, "complete_step", after=count)
os._exit(__main__.main(sys.argv[3:]))
"""


def flags(of: Job) -> list[str]:
    return [
        # With running statistics, which each step changes, and random numbers.
        *("--workload", "tests.trainer.norm:load"),
        *("--epochs", "2", "--checkpoint-every-steps", str(EVERY_STEP)),
        *("--trace-samples", str(of.traces)),
    ]


def start_to_die(of: Job, rank: int, point: str, program: Path) -> Pod:
    program.write_text(SUICIDAL_RANK)
    return of.start(rank, "--", sys.executable, str(program), point, str(FATAL_STEP), *flags(of))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with job(tmp_path_factory.mktemp("undisturbed"), nodes=RANKS) as reference:
        for pod in reference.start_all(*flags(reference)):
            assert pod.wait() == 0, pod.log
        yield reference


def assert_same_run(actual: Job, expected: Job) -> None:
    assert_same(actual.state(LAST_STEP), expected.state(LAST_STEP))
    for rank in range(RANKS):
        assert actual.steps_of(rank) == expected.steps_of(rank)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "point",
    [
        "vote",
        "backward",
        "before the optimizer's step",
        "within the optimizer's step",
        "after the optimizer's step",
        "evaluation",
    ],
)
def test_a_rank_that_dies_in_a_step(
    point: str, victim: int, tmp_path: Path, undisturbed: Job
) -> None:
    with job(tmp_path, nodes=RANKS) as wounded:
        pods = [
            start_to_die(wounded, rank, point, tmp_path / "program.py")
            if rank == victim
            else wounded.start(rank, *flags(wounded))
            for rank in range(RANKS)
        ]
        assert pods[victim].wait() == 128 + signal.SIGKILL, pods[victim].log
        successor = wounded.start(victim, *flags(wounded))
        for pod in [*pods[:victim], successor, *pods[victim + 1 :]]:
            assert pod.wait() == 0, pod.log
        assert "going on from memory at step" in successor.log
        assert "resuming from checkpoint" not in successor.log
        assert_same_run(wounded, undisturbed)


def test_rank_0_dies_within_a_save(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, nodes=RANKS) as wounded:
        first = start_to_die(wounded, 0, "within a save", tmp_path / "program.py")
        others = [wounded.start(rank, *flags(wounded)) for rank in (1, 2)]
        assert first.wait() == 128 + signal.SIGKILL, first.log
        [half] = wounded.checkpoints.glob("step-*")
        assert half.name == f"step-{EVERY_STEP:08d}"
        successor = wounded.start(0, *flags(wounded))
        for pod in [successor, *others]:
            assert pod.wait() == 0, pod.log
        assert "resuming from checkpoint" not in successor.log
        assert_same_run(wounded, undisturbed)


@pytest.mark.parametrize("point", ["rendezvous", "the state's transfer"])
def test_a_successor_dies_while_the_group_forms_anew(
    point: str, tmp_path: Path, undisturbed: Job
) -> None:
    with job(tmp_path, nodes=RANKS) as wounded:
        pods = [wounded.start(0, *flags(wounded)), wounded.start(1, *flags(wounded))]
        first = start_to_die(wounded, 2, "backward", tmp_path / "program.py")
        assert first.wait() == 128 + signal.SIGKILL, first.log
        second = start_to_die(wounded, 2, point, tmp_path / "program.py")
        assert second.wait() == 128 + signal.SIGKILL, second.log
        third = wounded.start(2, *flags(wounded))
        for pod in [*pods, third]:
            assert pod.wait() == 0, pod.log
        assert "resuming from checkpoint" not in third.log
        assert_same_run(wounded, undisturbed)


def test_a_score_of_kills_at_random_moments(tmp_path: Path, undisturbed: Job) -> None:
    """The same few of those that `make chaos` draws by the hundred."""
    with job(tmp_path, nodes=RANKS, extra_environment=STACKS) as wounded:
        wounded.start_all(*flags(wounded), *PATIENCE)
        disturbance = Disturbance(wounded)
        disturbance.strike(blows(SEED, ranks=RANKS), at_most=20)
        assert disturbance.toll.kills >= 5, disturbance.toll.story
        assert_same_run(wounded, undisturbed)

"""Ranks of a sharded training die; the others keep their processes, and no result changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from ddp_trainer.memory.volume import SLOTS

from tests.ports import free_port
from tests.trainer.library.runs import Undisturbed, log_of, run_with_faults, script_job
from tests.trainer.library.sharded.sharding import (
    AFTER_STEP,
    BEFORE_JOIN,
    COPIES,
    NEEDS_TORCH,
    PAUSE_STEP,
    PAUSES,
    SHARD_SIZE,
)
from tests.trainer.recovery.test_kill_points import spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.memory_jobs import memory_job
from tests.trainer.support.pods import until

EPOCHS = 2
LAST_STEP = {2: 46, 3: 30, 4: 24}

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(900)]
FLAGS = ("--epochs", str(EPOCHS))

Expected = Callable[[int], set[str]]


def run(
    folder: Path,
    ranks: int,
    copies: int,
    plan: Sequence[FaultAt],
    *,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run to the end with faults; return the log."""
    settings = {COPIES: str(copies), **(variables or {})}
    return log_of(
        run_with_faults(folder, plan, *FLAGS, ranks=ranks, script="shards", variables=settings)
    )


def memory_in(folder: Path) -> dict[str, str]:
    """Return variables that give a pod a volume in memory."""
    folder.mkdir()
    return {
        "DDP_STATUS_PORT": str(free_port()),
        "DDP_MEMORY_DIR": str(folder),
        "DDP_MEMORY_BYTES": str(16 << 20),
        "DDP_MEMORY_COPIES": "0",
    }


def printed(log: str) -> set[str]:
    """Return the losses and the states at the end in a log."""
    return set(re.findall(r"rank \d (?:took step \d+: .*|ends with \w+)", log))


@pytest.fixture
def expected(undisturbed: Undisturbed) -> Expected:
    """Return a function that gives the printed lines of a run of so many ranks without faults."""

    def of(ranks: int) -> set[str]:
        lines = printed(log_of(undisturbed("shards", *FLAGS, ranks=ranks)))
        assert len(lines) == ranks * (LAST_STEP[ranks] + 1)
        return lines

    return of


def test_ranks_die_at_every_point_of_a_step(tmp_path: Path, expected: Expected) -> None:
    points = (
        *("vote", "within a step", "gate", "before the optimizer's step"),
        *("within the optimizer's step", "after the optimizer's step", "a snapshot's copy"),
    )
    dead = [FaultAt(rank=number % 3, point=point) for number, point in enumerate(points)]
    first, second = spread(dead[:4], begin=2, end=14), spread(dead[4:], begin=17, end=28)
    between = [
        FaultAt(rank=0, point="evaluation", step=15),  # after the last step of the epoch
        FaultAt(rank=1, point="after the optimizer's step", step=16),  # the first of the next one
    ]
    plan = [*first, *between, *second]
    log = run(tmp_path, 3, 1, plan)
    assert printed(log) == expected(3)
    assert log.count("restarting it") == len(plan), log


@pytest.mark.nightly
def test_a_rank_dies_while_another_is_replaced(tmp_path: Path, expected: Expected) -> None:
    """Rank 1's part is with rank 3, and rank 0's with rank 2."""
    plan = [
        FaultAt(rank=1, point="within a step", step=4),
        FaultAt(rank=1, point="the state's transfer"),
        FaultAt(rank=1, point="gate", step=8),
        FaultAt(rank=0, point="the state's transfer"),
        FaultAt(rank=2, point="a snapshot's copy", step=12),
        FaultAt(rank=3, point="connection"),
    ]
    log = run(tmp_path, 4, 1, plan)
    assert printed(log) == expected(4)
    assert log.count("restarting it") == len(plan), log


@pytest.mark.nightly
def test_two_neighbours_die_at_once(tmp_path: Path, expected: Expected) -> None:
    plan = [
        FaultAt(rank=1, point="within a step", step=4),
        FaultAt(rank=2, point="gate"),
        FaultAt(rank=3, point="a snapshot's copy", step=10),
        FaultAt(rank=0, point="rendezvous"),
    ]
    log = run(tmp_path, 4, 2, plan)
    assert printed(log) == expected(4)
    assert log.count("restarting it") == len(plan), log


def test_ranks_of_replicas_die(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Each of 2 x 2 ranks, then both that have the same shard, ranks 1 and 3."""
    replicas = {SHARD_SIZE: "2"}
    expected = printed(log_of(undisturbed("shards", *FLAGS, ranks=4, variables=replicas)))
    plan = [
        FaultAt(rank=0, point="within a step", step=3),
        FaultAt(rank=1, point="gate", step=6),
        FaultAt(rank=2, point="a snapshot's copy", step=9),
        FaultAt(rank=2, point="the state's transfer"),
        FaultAt(rank=3, point="within the optimizer's step", step=14),
        FaultAt(rank=1, point="within a step", step=18),
        FaultAt(rank=3, point="rendezvous"),
    ]
    log = run(tmp_path, 4, 2, plan, variables=replicas)
    assert len(expected) == 4 * (LAST_STEP[4] + 1), log
    assert printed(log) == expected
    assert log.count("restarting it") == len(plan), log


@pytest.mark.nightly
def test_a_pod_dies_with_all_its_ranks(tmp_path: Path, expected: Expected) -> None:
    """The copies of their parts are in the other pod."""
    variables = {COPIES: "1", PAUSES: str(tmp_path)}
    (tmp_path / BEFORE_JOIN).touch()
    with script_job(tmp_path, ranks=4, nodes=2, script="shards", variables=variables) as job:
        survivor, victim = job.start_all(*FLAGS)
        for rank, pod in enumerate((survivor, survivor, victim, victim)):
            # A launcher that is killed takes lines with it that it has not printed.
            pod.wait_for_log(f"rank {rank} took step {PAUSE_STEP}:")
        victim.kill()
        (tmp_path / AFTER_STEP).touch()
        successor = job.start(1, *FLAGS)
        for pod in (survivor, successor):
            assert pod.wait() == 0, pod.log
        assert "restarting it" not in survivor.log
        assert set().union(*(printed(pod.log) for pod in job.pods)) == expected(4)


def test_more_lost_ranks_than_copies_continue_from_the_memory_of_the_pod(
    tmp_path: Path, expected: Expected
) -> None:
    """First a rank and the one with its copy are lost, later all."""
    plan = [
        FaultAt(rank=1, point="within a step", step=6),
        FaultAt(rank=2, point="rendezvous"),  # has rank 1's part, which has not travelled yet
        FaultAt(rank=0, point="within a step", step=20),
        FaultAt(rank=1, point="rendezvous"),
        FaultAt(rank=2, point="rendezvous"),
    ]
    log = run(tmp_path, 3, 1, plan, variables=memory_in(tmp_path / "memory"))
    assert printed(log) == expected(3)
    assert log.count("was killed") == len(plan), log
    assert len(loaded_steps(log)) == 2, log
    assert "parts of the model are gone, and all ranks restart from step" in log
    # Restarts because of other ranks do not count: after a few, the pod and its memory would end.
    counts = re.findall(r"parts of the model are gone, .*: restarting it, (\d) of at most", log)
    assert set(counts) == {"1"}, log


@pytest.mark.nightly
def test_a_step_that_a_lost_rank_has_not_saved_takes_no_room(
    tmp_path: Path, expected: Expected
) -> None:
    """The others have saved it, so they had no room for newer steps until they released it."""
    memory, plan = tmp_path / "memory", [FaultAt(rank=1, point="a save in memory", step=3)]
    variables = {
        COPIES: "1",
        PAUSES: str(tmp_path),
        **memory_in(memory),
        **fault_injection.environment(plan, tmp_path / "faults"),
    }
    (tmp_path / BEFORE_JOIN).touch()
    with script_job(tmp_path, ranks=3, script="shards", variables=variables) as job:
        [pod] = job.start_all(*FLAGS)
        for rank in range(3):
            pod.wait_for_log(f"rank {rank} took step {PAUSE_STEP}:")
        fault_injection.assert_all_happened(plan, tmp_path / "faults", pod.log)

        def has_room(rank: int) -> bool:
            return len(list(memory.glob(f"own/{rank}/*.snapshot"))) < SLOTS

        until(lambda: all(map(has_room, range(3))), "room for a newer step")
        (tmp_path / AFTER_STEP).touch()
        assert pod.wait() == 0, pod.log
        assert printed(pod.log) == expected(3)


def loaded_steps(log: str) -> list[int]:
    """Return the steps that were loaded from the memory of the pods; none is the beginning."""
    steps = re.findall(r"loading step (\d+) from the memory of the pods", log)
    assert "0" not in steps
    return [int(step) for step in steps]


@pytest.mark.nightly
def test_a_lost_pod_without_copies_continues_from_the_memory_of_another(
    tmp_path: Path, expected: Expected
) -> None:
    """Its launcher has fetched its snapshot, but not kept it: the other rank sends it."""
    script = ("--", sys.executable, "-m", "tests.trainer.library.sharded.sharding")
    with (
        pytest.MonkeyPatch.context() as patch,
        memory_job(tmp_path, nodes=2, command=[*script, *FLAGS]) as job,
    ):
        patch.setenv(COPIES, "0")
        patch.setenv(PAUSES, str(tmp_path))
        (tmp_path / BEFORE_JOIN).touch()
        pods = [job.start(node_rank) for node_rank in range(2)]
        for pod in pods:
            pod.wait_for_log(f"took step {PAUSE_STEP}:")
        until(lambda: "step" in job.memory(), "a step to be complete")
        complete = job.memory()["step"]
        pods[0].process.kill()
        pods[0].process.wait()
        (tmp_path / BEFORE_JOIN).unlink()
        (tmp_path / AFTER_STEP).touch()
        pods[0] = job.start(0, generation=2)
        pods[0].wait_to_listen()
        job.restart(pods, 2)
        pods[0].wait_for_log("memory: resuming from step")
        [fetched] = job.volumes.glob(f"{pods[0].name}/restored/*.snapshot")
        fetched.unlink()
        (tmp_path / BEFORE_JOIN).touch()
        for pod in pods:
            assert pod.wait() == 0, pod.log
        [step] = loaded_steps(pods[0].log)
        assert step >= complete
        assert f"step {step}: rank 0's part from rank 1" in pods[0].log
        assert set().union(*(printed(pod.log) for pod in job.job.pods)) == expected(2)


@pytest.mark.nightly
def test_without_copies_a_lost_rank_restarts_all(tmp_path: Path, expected: Expected) -> None:
    log = run(tmp_path, 3, 0, [FaultAt(rank=1, point="within a step", step=4)])
    assert printed(log) == expected(3)
    assert log.count("was killed") == 1, log
    assert "more ranks were lost than join(shard_copies=...) protects from" in log

"""Groups that change during training to fewer, more or other ranks and continue from memory.

No step is lost or taken twice, for any pod that leaves, joins or becomes rank 0's.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.trainer.library.runs import script_job
from tests.trainer.library.script import SLOW_EVALUATION
from tests.trainer.support.membership_changes import (
    FLAGS,
    World,
    assert_each_step_once,
    assert_ends_alike,
    step_of_change,
)
from tests.trainer.support.pods import Job, Pod, assert_same, until

STANDSTILL_SECONDS = 2.0
PATIENT = {"DDP_LEAVE_SECONDS": "600"}
"""Leave time of stopped pods; without it, half of the time that they have to save is less."""


@contextmanager
def training(
    folder: Path,
    *flags: str,
    nodes: int,
    ranks_a_node: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[World]:
    """Start a job of this number of pods and wait until it trains."""
    with script_job(folder, ranks=nodes * ranks_a_node, nodes=nodes) as of:
        of.extra_environment = {**of.extra_environment, **(variables or {})}
        world = World(of, [*FLAGS, *flags, "--trace-samples", str(of.traces)])
        world.start_all(nodes)
        of.wait_for_step(5)
        yield world


@contextmanager
def frozen(pod: Pod) -> Iterator[None]:
    """Freeze a pod's ranks, then kill it, so that its end is no warning."""
    for pid in pod.child_pids():
        os.kill(pid, signal.SIGSTOP)
    yield
    pod.kill()


def begun_again(of: Job, *, ranks: int) -> set[int]:
    """Return the steps that a rank began more than once."""
    begun = [of.begun_steps_of(rank) for rank in range(ranks)]
    return {later for steps in begun for earlier, later in pairwise(steps) if later <= earlier}


def wait_for_standstill(of: Job, *, rank: int) -> int:
    """Wait until a rank begins no more steps, which take 0.1 s each; return the last one."""
    last, since = -1, time.monotonic()

    def stands() -> bool:
        nonlocal last, since
        now = max(of.begun_steps_of(rank))
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > STANDSTILL_SECONDS

    until(stands, f"rank {rank} to wait for the others")
    return last


def saved_by(pod: Pod) -> list[int]:
    """Return the steps of the checkpoints that a pod has written, in order."""
    return [int(step) for step in re.findall(r"saved checkpoint .*step (\d+)", pod.log)]


def end(world: World) -> tuple[int, int]:
    """Wait until all pods complete alike; return the last steps before the change, and of all."""
    for pod in world.slots.values():
        assert pod.wait() == 0, pod.log
        assert "forming it again" not in pod.log, "a group that changes is none that breaks"
    assert_ends_alike([*world.slots.values()])
    last = step_of_change(world.slots[world.members[0]])
    ends = max(world.of.begun_steps_of(0))
    assert world.of.state(ends)["position"]["step"] == ends
    return last, ends


LAST_RANK = pytest.param(2, marks=pytest.mark.nightly)


@pytest.mark.parametrize("leaver", [0, 1, LAST_RANK])
def test_a_healthy_group_of_three_becomes_one_of_two(leaver: int, tmp_path: Path) -> None:
    with training(tmp_path, nodes=3) as world:
        world.change([slot for slot in range(3) if slot != leaver])
        left = world.slots.pop(leaver)
        assert left.wait() == 0, left.log
        assert "this pod is no longer in the group (generation 1)" in left.log
        assert "ends with" not in left.log, "the script does not continue after its training"
        last, ends = end(world)
        for pod in world.slots.values():
            assert "the group changes from 3 to 2 pods (generation 1)" in pod.log
        assert not begun_again(world.of, ranks=3)
        assert_each_step_once(world.of, (3, last), (2, ends))


@pytest.mark.parametrize("victim", [0, 1, LAST_RANK])
def test_two_of_three_continue_without_the_lost_pod(victim: int, tmp_path: Path) -> None:
    with training(tmp_path, nodes=3) as world:
        with frozen(world.slots.pop(victim)):
            world.change(list(world.slots))
        last, ends = end(world)
        assert begun_again(world.of, ranks=3) <= {last + 1}
        assert_each_step_once(world.of, (3, last), (2, ends))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with script_job(tmp_path_factory.mktemp("undisturbed"), ranks=2, nodes=2) as of:
        for pod in of.start_all(*FLAGS, "--trace-samples", str(of.traces)):
            assert pod.wait() == 0, pod.log
        yield of


@pytest.mark.parametrize("victim", [0, 1])
def test_a_pod_that_replaces_a_lost_one_ends_with_the_same_bits(
    victim: int, tmp_path: Path, undisturbed: Job
) -> None:
    with training(tmp_path, nodes=2) as world:
        with frozen(world.slots.pop(victim)):
            world.change([2, 1] if victim == 0 else [0, 2], broken=True)
        successor = world.start(2, node_rank=victim, nodes=2)
        world.tell([*world.slots])
        for pod in world.slots.values():
            assert pod.wait() == 0, pod.log
        assert "MB in" in successor.log, "its state is the survivor's"
        last_step = max(undisturbed.steps_of(0))
        assert_same(world.of.state(last_step), undisturbed.state(last_step))
        for rank in range(2):
            assert world.of.steps_of(rank) == undisturbed.steps_of(rank)


@pytest.mark.parametrize(
    ("leaver", "nodes", "ranks"), [(0, 3, 1), (1, 3, 1), (0, 2, 2)], ids=["rank 0", "other", "two"]
)
def test_a_stopped_pod_leaves_first_if_the_others_can_continue(
    leaver: int, nodes: int, ranks: int, tmp_path: Path
) -> None:
    with training(tmp_path, nodes=nodes, ranks_a_node=ranks, variables=PATIENT) as world:
        going = world.slots.pop(leaver)
        going.stop()
        going.wait_for_log("telling the ranks to save and stop")
        trains = max(world.of.begun_steps_of(0)) + 1
        world.of.wait_for_step(trains)
        world.change(list(world.slots))
        assert going.wait() == 143, going.log
        last, ends = end(world)
        assert last >= trains
        for pod in world.slots.values():
            assert "another pod is stopping" not in pod.log
        assert_each_step_once(world.of, (nodes * ranks, last), ((nodes - 1) * ranks, ends))
        assert max(saved_by(going), default=0) <= last, "it saves no more than it has trained"


def test_a_stopped_pod_leaves_its_evaluation_to_the_others(tmp_path: Path) -> None:
    slow = {**PATIENT, SLOW_EVALUATION: "0.1"}
    with training(tmp_path, nodes=2, variables=slow) as world:
        for pod in world.slots.values():
            pod.wait_for_log("evaluating")
        going = world.slots.pop(0)
        going.stop()
        going.wait_for_log("telling the ranks to save and stop")
        world.change([1])
        assert going.wait() == 143, going.log
        assert "epoch 0" not in going.log
        last, ends = end(world)
        assert_each_step_once(world.of, (2, last), (1, ends))
        log = world.slots[1].log
        assert re.findall(r"epoch (\d): \d+ of (\d+)", log) == [("0", "360"), ("1", "360")]


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_do_not_wait_for_a_pod_that_the_operator_reports_lost(
    victim: int, tmp_path: Path
) -> None:
    # No rank notices the loss in another way than by the operator's report.
    seconds = ("--heartbeat-timeout-seconds", "600", "--group-timeout-seconds", "600")
    with training(tmp_path, *seconds, nodes=3) as world:
        # Its connections stay open, like those of a lost node. They close after the report, because
        # the next rank 0 needs the port, which the pods of this test share.
        with frozen(world.slots.pop(victim)):
            last = wait_for_standstill(world.of, rank=1 - victim)
            world.change(list(world.slots), broken=True)
            # The first rank that reads it closes its connections, which the other may notice first.
            report = "the operator has replaced a lost pod"
            until(lambda: any(report in pod.log for pod in world.slots.values()), "the report")
        for pod in world.slots.values():
            assert pod.wait() == 0, pod.log
        assert_ends_alike([*world.slots.values()])
        assert step_of_change(world.slots[world.members[0]]) >= last - 1


def test_two_become_three(tmp_path: Path) -> None:
    with training(tmp_path, nodes=2) as world:
        world.change([0, 1, 2], tell=[])
        newcomer = world.start(2, node_rank=2, nodes=3)
        newcomer.wait_for_log("belongs to generation 0 of the group, and this rank to 1")
        world.tell([0, 1, 2])
        last, ends = end(world)
        assert "MB in" in newcomer.log, "its state is another rank's"
        assert not begun_again(world.of, ranks=2)
        assert_each_step_once(world.of, (2, last), (3, ends))


def test_rank_0_becomes_another_process_of_a_healthy_group(tmp_path: Path) -> None:
    with training(tmp_path, nodes=3) as world:
        world.change([2, 0, 1])
        last, ends = end(world)
        assert "the group of 3 pods has new members (generation 1)" in world.slots[0].log
        assert "node rank 0 becomes 1" in world.slots[0].log
        assert not begun_again(world.of, ranks=3)
        assert_each_step_once(world.of, (3, last), (3, ends))
        assert saved_by(world.slots[2])[-1] == ends
        assert f"(step {last // 3 * 3 + 3})" not in world.slots[0].log, "it saves no more"


def test_one_pod_with_the_new_group_is_enough_and_the_others_wait(tmp_path: Path) -> None:
    with training(tmp_path, nodes=3) as world:
        world.change([0, 1, 2], tell=[1])
        world.slots[0].wait_for_log("leaving it")
        world.slots[1].wait_for_log("belongs to generation 0 of the group, and this rank to 1")
        world.tell([0])
        world.slots[2].wait_for_log("belongs to generation 1 of the group, and this rank to 0")
        world.tell([2])
        last, ends = end(world)
        assert not begun_again(world.of, ranks=3)
        assert_each_step_once(world.of, (3, last), (3, ends))

"""A pod with a part of a sharded model moves while all train; no rank takes a step twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.trainer.library.runs import Undisturbed, log_of, script_job
from tests.trainer.library.sharded.sharding import (
    AFTER_STEP,
    BEFORE_JOIN,
    COPIES,
    NEEDS_TORCH,
    PAUSE_STEP,
    PAUSES,
)
from tests.trainer.library.sharded.test_fsdp import FLAGS, LAST_STEP, printed
from tests.trainer.support.membership_changes import World

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(900)]
_PODS = 3
_PATIENT = {"DDP_LEAVE_SECONDS": "600"}


@pytest.mark.parametrize("leaver", [0, 1])
def test_pod_moves_between_two_steps(leaver: int, tmp_path: Path, undisturbed: Undisturbed) -> None:
    variables = {COPIES: "1", PAUSES: str(tmp_path), **_PATIENT}
    (tmp_path / BEFORE_JOIN).touch()
    with script_job(
        tmp_path, ranks=_PODS, nodes=_PODS, script="shards", variables=variables
    ) as job:
        world = World(job, FLAGS)
        world.start_all(_PODS)
        for rank, pod in world.slots.items():
            pod.wait_for_log(f"rank {rank} took step {PAUSE_STEP}:")
        going = world.slots.pop(leaver)
        world.change([_PODS if rank == leaver else rank for rank in range(_PODS)], tell=[])
        world.start(_PODS, node_rank=leaver, nodes=_PODS)
        world.tell([*world.slots])
        going.stop()
        going.wait_for_log("telling the ranks to save and stop")
        (tmp_path / AFTER_STEP).touch()
        assert going.wait() == 143, going.log
        for pod in world.slots.values():
            assert pod.wait() == 0, pod.log
        logs = "\n".join(pod.log for pod in job.pods)
    assert "forming it again" not in logs, "a group that changes is none that breaks"
    taken = Counter(re.findall(r"rank (\d) took step (\d+):", logs))
    assert set(taken.values()) == {1}
    assert len(taken) == _PODS * LAST_STEP[_PODS]
    expected = printed(log_of(undisturbed("shards", *FLAGS, ranks=_PODS)))
    assert printed(logs) == expected
    assert f"rank {leaver}'s part from rank" in logs, "it comes from the others' memory"

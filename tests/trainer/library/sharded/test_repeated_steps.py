"""Which steps sharded ranks take twice after a loss, at each point at which a rank can die."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.trainer.library.runs import Undisturbed, log_of
from tests.trainer.library.sharded.sharding import NEEDS_TORCH, ONLY_SHARDS, SHARD_SIZE
from tests.trainer.library.sharded.test_fsdp import FLAGS, LAST_STEP, printed, run
from tests.trainer.support.fault_injection import FaultAt

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(900)]
REPLICAS = {SHARD_SIZE: "2", ONLY_SHARDS: "1"}
"""2 x 2 ranks: ranks 0 and 2 have the same part, and ranks 1 and 3."""

COPIED = [
    FaultAt(rank=0, point="within a step", step=4, others_at="a snapshot copied"),
    FaultAt(rank=1, point="vote", step=7, others_at="a snapshot copied"),
]
NOT_COPIED = [
    FaultAt(rank=2, point="after the optimizer's step", step=12, others_at="a step taken"),
    FaultAt(rank=1, point="a snapshot's departure", step=20, others_at="a step taken"),
]
"""The parts of step 11, and of step 19, die with their ranks."""


def repeated(log: str) -> dict[int, set[int]]:
    """Return the ranks that took a step more than once, by step; all steps must be there."""
    taken = Counter(re.findall(r"rank (\d) took step (\d+):", log))
    steps: dict[int, set[int]] = {}
    for (rank, step), times in taken.items():
        assert times <= 2, log
        if times == 2:
            steps.setdefault(int(step), set()).add(int(rank))
    return steps


def check_result(
    log: str, plan: Sequence[FaultAt], of: Undisturbed, ranks: int, **more: str
) -> None:
    """Check that all faults happened and the result is that of an undisturbed run, to the bit."""
    expected = printed(log_of(of("shards", *FLAGS, ranks=ranks, variables=more or None)))
    assert len(expected) == ranks * (LAST_STEP[ranks] + 1)
    assert printed(log) == expected
    assert log.count("restarting it") == len(plan), log


@pytest.mark.parametrize(("ranks", "variables"), [(3, {}), (4, REPLICAS)], ids=["fsdp", "hsdp"])
def test_steps_that_no_copy_exists_of_are_taken_twice(
    ranks: int, variables: Mapping[str, str], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    plan = [*COPIED, *NOT_COPIED]
    log = run(tmp_path, ranks, 1, plan, variables=variables)
    check_result(log, plan, undisturbed, ranks, **variables)
    assert repeated(log) == {11: {*range(ranks)} - {2}, 19: {*range(ranks)}}

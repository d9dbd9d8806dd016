"""The others notice at once that a rank left its training early, and it joins them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_trainer.exit_codes import BrokenGroupError, LeftEarlyError
from ddp_trainer.process_group.end_of_training import Objection, ScriptProgress, wait_for_all_to_end
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.sockets import Connections
from torch._C._distributed_c10d import HashStore

from tests.trainer.library.runs import Undisturbed, ends_of, log_of, run_with_faults
from tests.trainer.support.fault_injection import FaultAt


def membership(store: HashStore, *, rank: int = 0) -> Membership:
    return Membership(
        root=store,
        address="127.0.0.1",
        store_address="127.0.0.1",
        port=1,
        name="group",
        connections=Connections(1),
        rank=rank,
        size=2,
        number=1,
        newcomers=0,
    )


def wait_for_end(store: HashStore, place: ScriptProgress, *, seconds: float = 60.0) -> None:
    wait_for_all_to_end(membership(store), place, lambda: None, timeout_seconds=seconds)


def test_a_rank_that_does_not_reach_the_end_is_named() -> None:
    expected = r"rank 1 did not reach the end of the training within 0\.1 s"
    with pytest.raises(BrokenGroupError, match=expected):
        wait_for_end(HashStore(), (3, 0, 0, 0), seconds=0.1)


def test_a_group_that_breaks_ends_the_wait() -> None:
    broken = BrokenGroupError("rank 1 has ended")
    with pytest.raises(BrokenGroupError, match="rank 1 has ended"):
        wait_for_all_to_end(membership(HashStore()), (3,), lambda: broken, timeout_seconds=60)


@pytest.mark.parametrize(
    ("mine", "objects_after"),
    [
        ((2, 0, 0, 1), None),  # behind
        ((3, 0, 0, 0), None),  # there
        ((3, 0, 1, 0), 0.0),  # it waits for a sum
        ((3, 1, 0, 0), 0.0),
        ((4, 0, 0, 1), 0.0),
        ((3, 0, 0, 1), 5.0),  # it may yet leave its loop
    ],
)
def test_a_rank_that_still_trains_objects_to_the_end(
    mine: ScriptProgress, objects_after: float | None
) -> None:
    store = HashStore()
    with pytest.raises(BrokenGroupError):
        wait_for_end(store, (3, 0, 0, 0), seconds=0.01)
    objection = Objection(1, lambda: mine, patience_seconds=5.0)
    of_group, has_objected = membership(store).store, []
    for now in (0.0, 4.0, 5.0):
        objection.look(of_group, now=now)
        has_objected.append(of_group.check(["objection"]))
    assert has_objected == [objects_after is not None and now >= objects_after for now in (0, 4, 5)]


def test_the_error_of_a_rank_that_left_early_names_both_ranks() -> None:
    store = HashStore()
    objection = Objection(1, lambda: (4, 0), patience_seconds=5.0)

    def look() -> None:
        objection.look(membership(store).store, now=0.0)

    with pytest.raises(LeftEarlyError, match="rank 0 left the training while rank 1 continues"):
        wait_for_all_to_end(membership(store), (3, 0), look, timeout_seconds=60)


def test_a_rank_that_leaves_early_is_started_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The timeout of groups is never reached: it is longer than the test's."""
    plan = [
        FaultAt(rank=1, point="after a step", step=5, action="leave"),
        FaultAt(rank=0, point="within a step", step=10, action="leave"),
        FaultAt(rank=1, point="after an epoch", action="leave"),
    ]
    flags = ("--epochs", "2", "--heartbeat-timeout-seconds", "4", "--group-timeout-seconds", "1000")
    expected = log_of(undisturbed("one model", *flags, ranks=2))
    log = log_of(run_with_faults(tmp_path, plan, *flags, ranks=2))
    for left, other in ((1, 0), (0, 1)):
        assert (
            f"the script of rank {left} left the training while rank {other} continues: "
            "let all ranks leave it at the same step"
        ) in log
    assert log.count("restarting it") == len(plan), log
    assert ends_of(log) == ends_of(expected)

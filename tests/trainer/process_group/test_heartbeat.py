"""The rank that is reported when a member of a group is silent."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Queue
from threading import Event

import pytest
from ddp_trainer.process_group.heartbeat import Heartbeat
from ddp_trainer.process_group.rendezvous.membership import Membership

from tests.ports import free_port
from tests.trainer.process_group.rendezvous.test_rendezvous import environment, meet, ranks, start
from tests.trainer.support.pods import DEADLINE_SECONDS

SIZE = 3


@pytest.fixture
def memberships() -> Iterator[list[Membership]]:
    port = free_port()
    with ranks() as pool:
        found = [start(pool, environment(rank, port=port, size=SIZE)) for rank in range(SIZE)]
        yield [future.result() for future in found]


def beat(membership: Membership, rank: int, *, timeout_seconds: float = 2.0) -> Queue[str]:
    """Send heartbeats as one rank; return the list that will contain the lost rank."""
    lost: Queue[str] = Queue()
    Heartbeat(
        membership, rank=rank, size=SIZE, timeout_seconds=timeout_seconds, on_lost=lost.put
    ).start()
    return lost


def test_silent_rank_is_reported_to_all(memberships: list[Membership]) -> None:
    named = [beat(memberships[rank], rank) for rank in (0, 2)]
    for lost in named:
        assert lost.get(timeout=DEADLINE_SECONDS) == (
            "rank 1 has been frozen or unreachable for 2 s"
        )


def test_broken_group_of_the_operator_is_reported(memberships: list[Membership]) -> None:
    broken, lost = Event(), Queue[str]()
    Heartbeat(
        memberships[1],
        rank=1,
        size=SIZE,
        timeout_seconds=0,
        on_lost=lost.put,
        is_broken=broken.is_set,
    ).start()
    with pytest.raises(Empty):
        lost.get(timeout=0.3)
    broken.set()
    words = "the operator has replaced a lost pod"
    assert lost.get(timeout=DEADLINE_SECONDS) == words


def test_silent_rank_0_is_reported(memberships: list[Membership]) -> None:
    lost = beat(memberships[1], 1)
    assert lost.get(timeout=DEADLINE_SECONDS) == "rank 0 has been frozen or unreachable for 2 s"


def test_successor_reports_its_predecessor(memberships: list[Membership]) -> None:
    named = [
        beat(membership, rank, timeout_seconds=DEADLINE_SECONDS)
        for rank, membership in enumerate(memberships)
    ]
    with ranks() as pool:
        successor = pool.submit(
            meet,
            environment(1, port=memberships[0].port, size=SIZE),
            timeout_seconds=0.5,
        )
        for lost in (named[0], named[2]):
            assert lost.get(timeout=DEADLINE_SECONDS) == ("a new process has replaced a rank")
        assert successor.exception() is not None

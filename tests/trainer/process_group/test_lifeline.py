"""All ranks learn at once of a process that ends, but not of one that leaves in order."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.process_group.lifeline import Lifeline

from tests.ports import free_port
from tests.trainer.library.runs import script_job
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import until

LONG = 60.0
"""Seconds to wait for a message that arrives at once."""
SHORT = 0.3
"""Seconds to wait for a message that must not arrive."""


class Ranks:
    """Lifelines of one group, all in this process."""

    def __init__(self, size: int) -> None:
        self.lost: list[SimpleQueue[str]] = [SimpleQueue() for _ in range(size)]
        self.ends = [Lifeline(rank, self.lost[rank].put) for rank in range(size)]
        self.port, self.key = self.ends[0].listen(size)
        for rank in range(1, size):
            self.connect(rank)

    def connect(self, rank: int, key: str | None = None) -> None:
        end, key = self.ends[rank], key or self.key
        end.connect("127.0.0.1", self.port, key, within_seconds=LONG)

    def hears(self, rank: int) -> str | None:
        """Return the message that a rank receives, if any."""
        try:
            return self.lost[rank].get(timeout=SHORT)
        except Empty:
            return None


@contextmanager
def ranks(size: int) -> Iterator[Ranks]:
    made = Ranks(size)
    try:
        yield made
    finally:
        for end in made.ends:
            end.leave()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_all_others_learn_which_rank_has_ended(lost: int) -> None:
    with ranks(3) as group:
        group.ends[lost].leave("")
        for rank in {0, 1, 2} - {lost}:
            expected = f"rank {lost} has ended, or left the group"
            assert group.lost[rank].get(timeout=LONG) == expected


def test_all_others_learn_the_reason() -> None:
    with ranks(3) as group:
        group.ends[1].leave("NCCL: COMM_ERROR")
        assert [group.lost[rank].get(timeout=LONG) for rank in (0, 2)] == ["NCCL: COMM_ERROR"] * 2


@pytest.mark.parametrize("leaver", [0, 1])
def test_rank_that_leaves_in_order_is_no_loss(leaver: int) -> None:
    with ranks(3) as group:
        group.ends[leaver].leave()
        assert [group.hears(rank) for rank in range(3)] == [None] * 3


def test_foreign_connections_break_nothing() -> None:
    with ranks(2) as group:
        for text in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096):
            with socket.create_connection(("127.0.0.1", group.port)) as foreign:
                foreign.sendall(text)
        assert [group.hears(rank) for rank in range(2)] == [None] * 2
        group.ends[1].leave("")
        assert group.lost[0].get(timeout=LONG)


def test_many_foreign_connections_do_not_block_a_rank() -> None:
    made = Ranks(1)
    with ExitStack() as stack:
        stack.callback(made.ends[0].leave)
        address = "127.0.0.1", made.port
        foreign = [stack.enter_context(socket.create_connection(address, LONG)) for _ in range(80)]
        # One connection for each rank, and 64 more.
        until(lambda: len(select.select(foreign, [], [], 0)[0]) == 80 - 65, "refusals")
        for one in foreign:
            one.close()
        rank = Lifeline(1, print)
        stack.callback(rank.leave)
        rank.connect(*address, made.key, within_seconds=LONG)


def test_forked_process_does_not_keep_it_open() -> None:
    """Data loading workers may outlive their rank."""
    with ranks(2) as group:
        sockets = [line.socket for end in group.ends for line in end._lines]
        child = os.fork()
        if child == 0:
            os._exit(sum(one.fileno() >= 0 for one in sockets))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [one.fileno() >= 0 for one in sockets] == [True] * len(sockets)


def test_missing_rank_0_is_a_broken_group() -> None:
    with pytest.raises(BrokenGroupError, match=r"rank 0 does not answer at 127\.0\.0\.1"):
        Lifeline(1, print).connect("127.0.0.1", free_port(), "00" * 16, within_seconds=LONG)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_host_that_waits_for_its_device_learns_of_a_lost_rank(victim: int, tmp_path: Path) -> None:
    """The lifeline alone reports it, before the heartbeat or a replacement of the rank."""
    dead = [FaultAt(rank=victim, point="backward", step=5)]
    variables = fault_injection.environment(dead, tmp_path / "faults")
    flags = ("--epochs", "1", "--max-restarts", "0", "--group-timeout-seconds", "1000")
    with script_job(tmp_path, ranks=3, nodes=3, device="stream", variables=variables) as of:
        trained = (*flags, "--heartbeat-timeout-seconds", "1000", "--trace-samples", str(of.traces))
        pods = of.start_all(*trained)
        others = [pod for rank, pod in enumerate(pods) if rank != victim]
        for pod in others:
            pod.wait_for_log("the group broke")
        successor = of.start(victim, *trained)
        with ExitStack() as stack:
            stack.callback(successor.kill)
            for pod in (successor, *others):
                assert pod.wait() == 0, pod.log
                assert "resuming from checkpoint" not in pod.log

"""The members of a group when ranks arrive late, twice, or from another job."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from ddp_trainer.exit_codes import ConfigurationError, RendezvousTimeoutError, StoppedError
from ddp_trainer.process_group.rendezvous import network, rendezvous, stores
from ddp_trainer.process_group.rendezvous.announcement import AnnouncedAddress, Announcement
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.rendezvous.network import Resolver
from ddp_trainer.process_group.rendezvous.rendezvous import Rendezvous
from ddp_trainer.process_group.rendezvous.retry import NotYetError, Wait, pauses, retry
from ddp_trainer.process_group.sockets import Connections
from ddp_trainer.settings.environment import Environment
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import PrefixStore

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS, contract

NOBODY = "192.0.2.1"
"""Reserved for examples (RFC 5737): nothing answers there."""


def environment(rank: int, *, port: int, size: int = 2, **placement: object) -> Environment:
    variables = contract(node_rank=rank, nodes=size, port=port)
    new = Environment.from_env(variables | {"RANK": str(rank), "LOCAL_RANK": "0"})
    return replace(new, placement=replace(new.placement, **placement))  # type: ignore[arg-type]


@contextmanager
def ranks() -> Iterator[ThreadPoolExecutor]:
    """Run each rank in a thread: the rendezvous has no state of the whole process."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def meet(of: Environment, *, timeout_seconds: float) -> Membership:
    """Meet like a new process, which was in no group before."""
    return Rendezvous(of).meet(timeout_seconds=timeout_seconds)


def start(pool: ThreadPoolExecutor, of: Environment) -> Future[Membership]:
    return start_again(pool, Rendezvous(of))


def start_again(pool: ThreadPoolExecutor, rank: Rendezvous) -> Future[Membership]:
    future = pool.submit(rank.meet, timeout_seconds=DEADLINE_SECONDS)
    future.rank = rank  # type: ignore[attr-defined]  # rank 0's store lives as long as the rank
    return future


def message(of: Membership) -> str:
    """Return a value that rank 0 sets in its group's store; no other group sees it."""
    return of.store.get("message").decode()


def test_each_group_has_its_own_keys() -> None:
    port = free_port()
    with ranks() as pool:
        found = [start(pool, environment(rank, port=port, size=3)) for rank in (2, 1, 0)]
        memberships = [future.result() for future in found]
    assert all(isinstance(membership.store, PrefixStore) for membership in memberships)
    memberships[2].store.set("message", "hello")
    assert {message(membership) for membership in memberships} == {"hello"}


def test_successor_waits_until_rank_0_has_left_its_old_group() -> None:
    port = free_port()
    with ranks() as pool:
        host = Rendezvous(environment(0, port=port))
        old = [start_again(pool, host), start(pool, environment(1, port=port))]
        old[1].result()
        with pytest.raises(RendezvousTimeoutError, match="rank 0 has not left its old group yet"):
            meet(environment(1, port=port), timeout_seconds=0.5)
        successor = start(pool, environment(1, port=port))
        old[0].result().store.set("message", "old")
        again = host.meet(timeout_seconds=DEADLINE_SECONDS)
        again.store.set("message", "new")
        assert message(successor.result()) == "new"
        assert message(old[0].result()) == "old"


def test_survivors_meet_a_new_rank_0_under_the_old_name_and_port() -> None:
    port = free_port()
    with ranks() as pool:
        survivor = Rendezvous(environment(1, port=port))
        old = [start(pool, environment(0, port=port)), start_again(pool, survivor)]
        assert old[0].result().name == old[1].result().name
        again = start_again(pool, survivor)
        old.clear()  # and with it rank 0's store
        gc.collect()
        successor = start(pool, environment(0, port=port))
        assert again.result().name == successor.result().name


def test_rank_0_ignores_an_old_address_of_its_own_name() -> None:
    port = free_port()
    with ranks() as pool:
        host = start(pool, environment(0, port=port, master_addr=NOBODY))
        guest = start(pool, environment(1, port=port))
        memberships = [future.result() for future in (host, guest)]
        assert memberships[0].name == memberships[1].name
        again = memberships[0].connect(timedelta(seconds=DEADLINE_SECONDS))
        again.store.set("message", "heard")
        assert message(memberships[1]) == "heard"


def test_rank_0_does_not_wait_for_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "digits-0-0.digits":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return original(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port = free_port()
    with ranks() as pool:
        host = start(pool, environment(0, port=port, master_addr="digits-0-0.digits"))
        guest = start(pool, environment(1, port=port))
        assert host.result().name == guest.result().name


def test_rank_in_the_pod_of_rank_0_needs_no_name() -> None:
    port = free_port()
    with ranks() as pool:
        both = [environment(0, port=port, master_addr=NOBODY) for _ in range(2)]
        placement = replace(both[0].placement, local_world_size=2)
        host = replace(both[0], placement=placement)
        guest = replace(host, rank=1, local_rank=1)
        memberships = [future.result() for future in [start(pool, of) for of in (guest, host)]]
        assert memberships[0].name == memberships[1].name


@pytest.mark.parametrize(("announced", "by_name"), [("127.0.0.1", NOBODY), (NOBODY, "127.0.0.1")])
def test_rank_0_is_found_by_announcement_or_by_name(
    announced: str, by_name: str, tmp_path: Path
) -> None:
    port, file = free_port(), AnnouncedAddress(tmp_path / "status.json")
    file.write(Announcement(job_uid="7d1f", attempt=0, address=announced))
    with ranks() as pool:
        guest = start_again(pool, Rendezvous(environment(1, port=port, master_addr=by_name), file))
        host = start(pool, environment(0, port=port))
        assert guest.result().name == host.result().name
        assert guest.result().address == "127.0.0.1"


@contextmanager
def silent_dns() -> Iterator[list[str]]:
    """Answer no DNS query until the end; yield the names in the queries."""
    end, queries = threading.Event(), list[str]()
    original = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        queries.append(host)
        end.wait()
        return original("127.0.0.1", *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        patched.setattr(network, "_ANSWER_SECONDS", 0.01)
        try:
            yield queries
        finally:
            end.set()


@pytest.mark.parametrize("rank", [0, 1])
def test_silent_dns_does_not_extend_the_deadline(rank: int) -> None:
    lonely = Rendezvous(environment(rank, port=free_port()))
    with silent_dns():
        with pytest.raises(RendezvousTimeoutError, match="no answer from DNS"):
            lonely.meet(timeout_seconds=0.1)
        with pytest.raises(StoppedError):
            lonely.meet(timeout_seconds=DEADLINE_SECONDS, told_to_stop=lambda: True)


def test_a_late_answer_of_dns_is_used() -> None:
    resolver = Resolver()
    with silent_dns() as queries:
        for _ in range(2):
            with pytest.raises(NotYetError, match="no answer from DNS"):
                resolver.resolve("rank-0", 80)
    wait = Wait(DEADLINE_SECONDS, lambda: False)
    assert "127.0.0.1" in retry(lambda: resolver.resolve("rank-0", 80), wait)
    assert queries == ["rank-0"]


def test_rank_0_resolves_its_name_once() -> None:
    host = Rendezvous(environment(0, port=free_port(), size=1))
    first = host.meet(timeout_seconds=DEADLINE_SECONDS)
    with silent_dns() as queries:
        again = host.meet(timeout_seconds=DEADLINE_SECONDS)
    assert again.address == first.address
    assert queries == []


def test_rank_0_retries_the_connection_to_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, failures = stores.client, [DistNetworkError("frozen meanwhile")]

    def failing_once(address: str, port: int, timeout: timedelta) -> TCPStore:
        if failures:
            raise failures.pop()
        return client(address, port, timeout)

    monkeypatch.setattr(stores, "client", failing_once)
    assert meet(environment(0, port=free_port(), size=1), timeout_seconds=DEADLINE_SECONDS).name
    assert not failures


def test_stop_ends_the_wait() -> None:
    with pytest.raises(StoppedError):
        Rendezvous(environment(0, port=free_port())).meet(
            timeout_seconds=DEADLINE_SECONDS, told_to_stop=lambda: True
        )


def test_rank_that_left_before_the_group_was_complete_is_replaced() -> None:
    port = free_port()
    with ranks() as pool:
        host = start(pool, environment(0, port=port, size=3))
        with pytest.raises(RendezvousTimeoutError, match="waits for the other ranks"):
            meet(environment(1, port=port, size=3), timeout_seconds=0.5)
        others = [start(pool, environment(rank, port=port, size=3)) for rank in (1, 2)]
        host.result().store.set("message", "hello")
        assert [message(future.result()) for future in others] == ["hello", "hello"]


def test_group_notices_the_successor_of_a_member() -> None:
    port = free_port()
    with ranks() as pool:
        host = Rendezvous(environment(0, port=port))
        member = Rendezvous(environment(1, port=port))
        group, _ = [
            future.result() for future in (start_again(pool, host), start_again(pool, member))
        ]
        assert not group.has_successor()
        with pytest.raises(RendezvousTimeoutError):
            member.meet(timeout_seconds=0.2)  # the same process, which left before the others
        assert not group.has_successor()
        with pytest.raises(RendezvousTimeoutError):
            meet(environment(1, port=port), timeout_seconds=0.2)
        assert group.has_successor()


@contextmanager
def frozen_store(port: int) -> Iterator[None]:
    """Rank 0's store in a frozen process: it accepts connections and never answers."""
    program = f"""
import signal
from torch._C._distributed_c10d import TCPStore
store = TCPStore("localhost", {port}, is_master=True, wait_for_workers=False)
print("listens", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            process.send_signal(signal.SIGSTOP)
            yield
        finally:
            process.kill()


def test_frozen_rank_0_does_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "REQUEST_SECONDS", 0.5)
    port = free_port()
    with frozen_store(port), pytest.raises(RendezvousTimeoutError, match="store went away"):
        meet(environment(1, port=port), timeout_seconds=1)


@pytest.mark.parametrize(
    ("foreign", "error"),
    [
        ({"attempt": 1}, "still belongs to attempt 0 of digits"),
        ({"size": 3, "job_uid": "later"}, "to attempt 0 of an earlier job digits"),
    ],
)
def test_rank_of_another_attempt_or_job_does_not_join(foreign: dict[str, Any], error: str) -> None:
    port = free_port()
    with ranks() as pool:
        host = start(pool, environment(0, port=port))
        with pytest.raises(RendezvousTimeoutError, match=error):
            meet(environment(1, port=port, **foreign), timeout_seconds=0.5)
        own = start(pool, environment(1, port=port))
        assert host.result().address == own.result().address


def test_rank_with_another_world_size_gets_an_error() -> None:
    port = free_port()
    with ranks() as pool:
        host = start(pool, environment(0, port=port))
        with pytest.raises(ConfigurationError, match="rank 0 has WORLD_SIZE 2"):
            meet(environment(1, port=port, size=3), timeout_seconds=DEADLINE_SECONDS)
        start(pool, environment(1, port=port)).result()
        host.result()


def test_pauses_grow_with_the_wait() -> None:
    large, small = pauses(512).after, pauses(2).after
    assert [large(waited) for waited in (0.0, 1.0, 16.0, 600.0)] == [0.05, 0.05, 0.5, 1.0]
    assert [small(waited) for waited in (0.0, 0.16, 16.0, 600.0)] == [0.005, 0.005, 0.5, 1.0]


@contextmanager
def black_hole() -> Iterator[int]:
    """A port of this machine to which connections time out, like one on a lost node."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        while True:  # until the queue is full
            connection = waiting.enter_context(socket.socket())
            connection.settimeout(0.2)
            try:
                connection.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port


def test_lost_address_is_given_up_before_the_request_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "REQUEST_SECONDS", 30.0)
    with black_hole() as port, ranks() as pool:
        is_lost = Event()
        tried = pool.submit(stores.connected, "127.0.0.1", port, is_lost.is_set)
        with pytest.raises(TimeoutError):
            tried.result(0.3)
        is_lost.set()
        with pytest.raises(NotYetError, match=r"rank 0's store is no longer at 127.0.0.1"):
            tried.result(20)


def test_request_is_given_up_once_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_FIRST_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(rendezvous, "_PROBE_SECONDS", 0.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        rank = Rendezvous(environment(1, port=port))
        with rank._deadline(Connections(port), "127.0.0.1") as is_lost:
            assert is_lost()
            listener.listen()
            assert not is_lost()
    with (
        black_hole() as port,
        Rendezvous(environment(1, port=port))._deadline(Connections(port), "127.0.0.1") as is_lost,
    ):
        assert is_lost()

"""A broken group cuts its own connections, but none of the script's threads."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ddp_trainer.process_group.sockets import Connections

from tests.trainer.support.pods import DEADLINE_SECONDS, job

RANK = """
import os, socket, sys, threading
from datetime import timedelta
import torch
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.process_group import connection
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.settings.environment import Environment
from torch import distributed as dist

others = []
init = dist.init_process_group

def connect():
    others.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))

def init_while_a_thread_connects(*arguments, **options):
    thread = threading.Thread(target=connect)
    thread.start()
    init(*arguments, **options)
    thread.join()

dist.init_process_group = init_while_a_thread_connects
world = GroupFormer(Environment.from_env(os.environ), group_timeout_seconds=600,
              heartbeat_timeout_seconds=0)
try:
    with world.formed(timeout_seconds=60) as group:
        if group.rank == 1:
            threading.Event().wait()
        print("formed", flush=True)
        group.barrier()
except BrokenGroupError:
    others[0].sendall(b"?")
    print("the other server answers", others[0].recv(1), flush=True)
os._exit(0)
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as opened:

        def answer() -> None:
            while True:
                try:
                    client = opened.enter_context(server.accept()[0])
                except OSError:
                    return
                threading.Thread(target=repeat, args=(client,), daemon=True).start()

        def repeat(client: socket.socket) -> None:
            while byte := client.recv(1):
                client.sendall(byte)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_connection_of_a_thread_outlives_the_group(echo: int, tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    with job(tmp_path, nodes=2) as two:
        first, second = two.start_all("--", sys.executable, str(program), str(echo))
        first.wait_for_log("formed")
        second.kill()
        first.wait_for_log("the other server answers b'?'")


def connected(stack: ExitStack, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    return client, stack.enter_context(server.accept()[0])


def is_cut(one: socket.socket) -> bool:
    one.settimeout(0.2)
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False


def test_only_connections_to_the_store_and_to_ranks_are_cut() -> None:
    with ExitStack() as stack:
        listen = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        store, other, foreign_rank = listen
        earlier = connected(stack, store)
        connections = Connections(store.getsockname()[1])
        to_store, unrelated = connected(stack, store), connected(stack, other)
        connections.begin_to_form()
        own_rank = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        assert connections.listening() == [own_rank.getsockname()]
        came, went = connected(stack, own_rank), connected(stack, foreign_rank)
        while_forming = connected(stack, other)
        connections.complete([own_rank.getsockname(), foreign_rank.getsockname()])
        later = connected(stack, own_rank)
        connections.cut()
        assert [is_cut(pair[0]) for pair in (to_store, came, went)] == [True] * 3
        kept = (earlier, unrelated, while_forming, later)
        assert [is_cut(pair[0]) for pair in kept] == [False] * 4
        with socket.create_connection(own_rank.getsockname(), DEADLINE_SECONDS):
            pass  # it still listens


def test_before_the_ranks_meet_only_the_stores_connections_are_cut() -> None:
    with ExitStack() as stack:
        store, other = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        connections = Connections(store.getsockname()[1])
        to_store, unrelated = connected(stack, store), connected(stack, other)
        connections.cut()
        assert is_cut(to_store[0])
        assert not is_cut(unrelated[0])


def test_reading_connections_leaves_sockets_blocking() -> None:
    """With a default timeout, Python makes sockets non-blocking."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client, _ = connected(stack, server)
        client.setblocking(True)
        stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(10)
        Connections(1)
        assert os.get_blocking(client.fileno())

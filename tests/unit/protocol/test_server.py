"""Refused requests and connections of a port that anybody may reach."""

import itertools

import pytest
from ddp_protocol.server.connections import Connections
from ddp_protocol.server.refusals import RefusalLog


def test_refusals_are_logged_at_powers_of_ten_and_again_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    log = RefusalLog(clock=lambda: now)
    for _ in range(1001):
        log.add("10.0.0.1", 403, "POST /stacks\n\x1b[0m", "no token")
    log.add("10.0.0.1", 400, "POST /stacks", "no JSON")
    now += 61
    log.add("10.0.0.1", 403, "POST /stacks", "no token")
    first = "refused POST /stacks\\n\\x1b[0m from 10.0.0.1: no token"
    times = [f" ({10**power} times within a minute)" for power in (1, 2, 3)]
    assert caplog.messages == [
        *(first + each for each in ("", *times)),
        "refused POST /stacks from 10.0.0.1: no JSON",
        "refused POST /stacks from 10.0.0.1: no token",
    ]


def test_refusals_of_many_clients_are_counted_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RefusalLog(clock=lambda: 1000.0)
    for number in range(10_200):
        log.add(f"10.0.0.{number}", 403, "POST /stacks", "no token" * 1000)
    assert len(caplog.messages) == 64 + 5
    assert caplog.messages[-1].startswith("refused POST /stacks from other clients: ")
    assert max(map(len, caplog.messages)) < 300


def test_full_table_closes_the_oldest_of_the_busiest_address() -> None:
    table: Connections[int] = Connections(4)
    added = [table.add(*each) for each in [(1, "a"), (2, "b"), (3, "b"), (4, "c")]]
    assert added == [None] * 4
    assert table.add(5, "d") == (2, "b")
    assert table.add(6, "a") == (1, "a")
    assert table.add(7, "e") == (3, "b"), "all have one: the oldest"
    assert not table.remove(1)
    assert table.remove(5)
    assert table.add(8, "f") is None


def test_one_client_is_kept_beside_any_number_of_busy_ones() -> None:
    table: Connections[int] = Connections(16)
    table.add(0, "honest")
    busy = itertools.cycle("abc")
    closed = [table.add(number, next(busy)) for number in range(1, 1000)]
    assert all(each is None or each[1] != "honest" for each in closed)
    assert table.remove(0)

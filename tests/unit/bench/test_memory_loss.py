"""Figures and table of the benchmark with a large state."""

from dataclasses import replace

import pytest
from ddp_protocol.copies import copy_plan, order_by_domain

from tests.bench.benchmark import BenchmarkError
from tests.bench.reports.memory_loss import (
    BLOCKS,
    LOST_BLOCK,
    Event,
    Run,
    Subject,
    events,
    table,
)

SUBJECT = Subject(state_mb=2000, torch="2.13.0", every_steps=10)
SIZE = 4096 * 3 - 1


def done(step: int, at: float) -> list[Event]:
    """Both ranks do a step, rank 1 a quarter of a second after rank 0."""
    return [Event(kind="done", step=step, rank=rank, at=at + rank / 4) for rank in range(2)]


def saved(step: int, at: float, seconds: float) -> list[Event]:
    """Both ranks save a step."""
    return [
        Event(kind="saved", step=step, rank=rank, at=at, seconds=seconds, copy=0.5)
        for rank in range(2)
    ]


BEFORE = [event for step in range(1, 46) for event in done(step, step)]
SAVES = [
    event
    for number, seconds in enumerate((2.0, 1.5, 0.5, 0.5), 1)
    for event in saved(10 * number, 10 * number + 0.5, seconds)
]
COMPLETE = {10 * number: 10 * number + 2.5 for number in (1, 2, 3, 4)}
RUN = Run(
    events=[*BEFORE, *SAVES, *(event for step in range(41, 48) for event in done(step, step + 10))],
    lost_at=45.6,
    complete=COMPLETE,
    most_bytes=4 * (SIZE + 1),
    snapshot_bytes=SIZE,
)
IN_PROCESS = replace(RUN, events=[*BEFORE, *done(46, 46)], complete={}, most_bytes=0)


def test_recovery_ends_at_a_new_step_of_all_ranks() -> None:
    assert RUN.resumed() == pytest.approx(41 + 10 + 0.25 - 45.6)
    assert RUN.recovered() == pytest.approx(46 + 10 + 0.25 - 45.6)
    assert RUN.steps_again() == 5
    assert IN_PROCESS.steps_again() == 0


def test_step_of_one_rank_is_neither_new_nor_repeated() -> None:
    ahead = Event(kind="done", step=46, rank=0, at=45.5)
    run = replace(IN_PROCESS, events=[*BEFORE, ahead, *done(46, 46), *done(47, 47)])
    assert run.recovered() == pytest.approx(47.25 - 45.6)
    assert run.steps_again() == 0


def test_one_rank_alone_has_not_recovered() -> None:
    alone = replace(IN_PROCESS, events=[*BEFORE, done(46, 46)[0]])
    assert alone.recovered() is None
    assert alone.resumed() is None
    with pytest.raises(BenchmarkError, match="join: no step after the loss"):
        table({"memory.save": [RUN], "join": [alone]}, SUBJECT)


def test_pauses_come_from_ranks_or_from_longer_steps() -> None:
    assert [one.seconds for one in RUN.fresh()] == [2.0, 1.5] * 2
    assert [one.ratio for one in RUN.later()] == [1.0, 1.0] * 2
    assert RUN.complete_after() == [2.0] * 4
    slow = [replace(one, at=one.at + 0.75 * (one.step > 20)) for one in BEFORE]
    untimed = replace(RUN, events=slow, complete={20: 23.0}, lost_at=50.0)
    assert untimed.pauses() == [0.75]
    assert set(untimed.steps()) == {1.0}
    assert untimed.complete_after() == [pytest.approx(2.75)]


def test_table_fits_a_terminal_and_shows_missed_aims() -> None:
    runs = {
        "memory.save": [RUN, RUN],
        "torch.save": [replace(RUN, most_bytes=0)],
        "join": [replace(IN_PROCESS, complete={20: 23.0})],
        "join, FSDP2": [IN_PROCESS],
    }
    lines = table(runs, SUBJECT).text.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line[:20].strip(): line[20:].split() for line in lines if line}
    assert rows["memory.save, first"][:2] == ["1.75", "(1.50-2.00)"]
    met = [line.split()[-1] for line in lines if line.startswith("aim")]
    assert met == ["met", "met", "MISSED", "met", "met"]
    assert any("4.00 snapshots a pod at most" in line for line in lines)
    leaked = replace(RUN, most_bytes=RUN.most_bytes + 4096)
    text = table(runs | {"memory.save": [leaked]}, SUBJECT).text
    assert "aim: ≤ 4 snapshots a pod MISSED" in text


def test_incomplete_line_is_ignored() -> None:
    line = '{"kind": "done", "step": 1, "rank": 0, "at": 2.5}\n'
    assert events(line + line[:9]) == [Event(kind="done", step=1, rank=0, at=2.5)]


def test_the_lost_block_survives_only_by_the_order_of_blocks() -> None:
    lost = {node_rank for node_rank, block in enumerate(BLOCKS) if block == LOST_BLOCK}

    def lost_snapshots(order: tuple[int, ...]) -> int:
        holders = copy_plan(order, 1).holders
        return sum(owner in lost and lost.issuperset(holders[owner]) for owner in lost)

    assert lost_snapshots(order_by_domain([(block,) for block in BLOCKS])) == 0
    assert lost_snapshots(tuple(range(len(BLOCKS)))) == 2
    assert 0 not in lost, "its process and its log are watched"
    assert sorted(BLOCKS.count(block) for block in set(BLOCKS)) == [1, 2, 3]

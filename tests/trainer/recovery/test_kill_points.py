"""Ranks die at every point; all runs end like an undisturbed one, to the bit.

At some points the survivors have nothing of the step, at others a part of it or all of it, or one
survivor has more than another. With a stream, the device is also behind the host. Running
statistics of batch norm and random numbers must not change either.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.chaos.blows import blows
from tests.trainer.chaos.disturbance import PATIENCE, STACKS, Disturbance
from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import job
from tests.trainer.support.preloaded import CPU, STREAM
from tests.trainer.support.runs import (
    LAST_STEP,
    Undisturbed,
    assert_same_run,
    flags,
)

SEED = 11


def plan_for(ranks: int) -> list[FaultAt]:
    """Plan each point of a step for the first, another and the last rank, and all other points."""
    victims = sorted({0, 1, ranks - 1})
    in_steps = [
        FaultAt(rank=rank, point=point) for point in fault_injection.IN_A_STEP for rank in victims
    ]
    # A successor dies while it forms the group, or a survivor unless it alone has the state.
    forming = [
        [FaultAt(rank=rank, point="backward"), FaultAt(rank=(rank + other) % ranks, point=point)]
        for point in fault_injection.WHILE_FORMING
        for rank, other in ((0, 0), (ranks - 1, 1 if ranks > 2 else 0))
    ]
    first = [*in_steps[::2], FaultAt(rank=0, point="within a save")]
    second = [*in_steps[1::2], *chain.from_iterable(forming)]
    half = LAST_STEP[ranks] // 2
    return [
        *spread(first, begin=2, end=half - 1),
        FaultAt(rank=ranks - 1, point="evaluation", step=half),
        *spread(second, begin=half + 1, end=2 * half - 1),
        FaultAt(rank=0, point="evaluation", step=2 * half),
    ]


def spread(plan: list[FaultAt], *, begin: int, end: int) -> list[FaultAt]:
    """Spread faults over steps; a rank that forms the group may be new and know no steps."""
    return [
        fault
        if fault.point in fault_injection.WHILE_FORMING
        else replace(fault, step=begin + number * (end - begin) // len(plan))
        for number, fault in enumerate(plan)
    ]


@pytest.mark.parametrize(
    ("forkserver", "ranks"),
    [
        (CPU, 3),
        pytest.param(CPU, 2, marks=pytest.mark.nightly),
        pytest.param(STREAM, 3, marks=pytest.mark.nightly),
    ],
    ids=["cpu-3", "cpu-2", "stream-3"],
)
def test_ranks_die_at_every_point(
    forkserver: str, ranks: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """The bundled loop is a script too; `library` tests a stream and other numbers of ranks."""
    actual = run_with_faults(tmp_path, plan_for(ranks), ranks=ranks, forkserver=forkserver)
    assert_same_run(actual, reference(ranks, forkserver))


@pytest.mark.parametrize(
    ("nodes", "local_world_size", "forkserver"),
    [(3, 1, CPU), pytest.param(1, 3, STREAM, marks=pytest.mark.nightly)],
    ids=["three pods", "stream"],
)
def test_twenty_kills_at_random_moments_change_nothing(
    nodes: int, local_world_size: int, forkserver: str, tmp_path: Path, reference: Undisturbed
) -> None:
    """Two of the runs that `make chaos` draws by the hundred."""
    shape: dict[str, Any] = {"nodes": nodes, "local_world_size": local_world_size}
    with job(tmp_path, **shape, forkserver=forkserver, extra_environment=STACKS) as killed:
        killed.start_all(*flags(killed), *PATIENCE)
        disturbance = Disturbance(killed)
        disturbance.strike(blows(SEED, ranks=3), at_most=20)
        assert disturbance.toll.kills >= 5, disturbance.toll.story
        assert_same_run(killed, reference(3, forkserver))

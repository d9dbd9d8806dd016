"""Ranks die at every point of their life; all runs end like an undisturbed one, to the bit.

The points differ in what the survivors have when it happens: nothing of the step, a part of it, all
of it, or one survivor more than another; with a stream the device is behind the host besides.
Running statistics of batch norm and random numbers are part of what must not change.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.chaos.blows import blows
from tests.trainer.chaos.disturbance import PATIENCE, STACKS, Disturbance
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import job
from tests.trainer.support.preloaded import CPU, STREAM
from tests.trainer.support.runs import (
    LAST_STEP,
    Undisturbed,
    assert_same_run,
    flags,
    run_to_its_end,
)

pytestmark = [pytest.mark.timeout(600)]

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
    """Spread deaths over steps; a rank that forms the group may be new and know of none."""
    return [
        death
        if death.point in fault_injection.WHILE_FORMING
        else replace(death, step=begin + number * (end - begin) // len(plan))
        for number, death in enumerate(plan)
    ]


@pytest.mark.parametrize(
    ("forkserver", "ranks"),
    [(CPU, 2), (CPU, 3), (STREAM, 3)],
    ids=["cpu-2", "cpu-3", "stream-3"],
)
def test_ranks_die_at_every_point(
    forkserver: str, ranks: int, tmp_path: Path, reference: Undisturbed
) -> None:
    """The bundled loop is a script too; tests of `library` cover other numbers of ranks."""
    plan, faults = plan_for(ranks), tmp_path / "faults"
    settings: dict[str, Any] = {"nodes": 1, "local_world_size": ranks, "forkserver": forkserver}
    with job(
        tmp_path, **settings, extra_environment=fault_injection.environment(plan, faults)
    ) as wounded:
        pod = run_to_its_end(wounded)
        fault_injection.assert_all_happened(plan, faults, pod.log)
        assert "resuming from checkpoint" not in pod.log
        assert_same_run(wounded, reference(ranks, forkserver))


@pytest.mark.parametrize(
    ("nodes", "local_world_size", "forkserver"),
    [(3, 1, CPU), (1, 3, STREAM)],
    ids=["three pods", "stream"],
)
def test_a_score_of_kills_at_random_moments(
    nodes: int, local_world_size: int, forkserver: str, tmp_path: Path, reference: Undisturbed
) -> None:
    """A few fixed runs of those that `make chaos` draws by the hundred."""
    shape: dict[str, Any] = {"nodes": nodes, "local_world_size": local_world_size}
    with job(tmp_path, **shape, forkserver=forkserver, extra_environment=STACKS) as wounded:
        wounded.start_all(*flags(wounded), *PATIENCE)
        disturbance = Disturbance(wounded)
        disturbance.strike(blows(SEED, ranks=3), at_most=20)
        assert disturbance.toll.kills >= 5, disturbance.toll.story
        assert_same_run(wounded, reference(3, forkserver))

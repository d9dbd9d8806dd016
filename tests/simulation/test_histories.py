"""Two thousand histories in which anything may happen; every invariant holds in all of them.

The histories are the same in each run, so failures are never accidental.
`python -m tests.simulation --histories 200000` runs new ones instead. One takes eighty milliseconds
of a core.
"""

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from tests.simulation.history import LEAST_STEPS, MOST_STEPS, SPEC_BYTES, STEP_BYTES
from tests.simulation.run import run
from tests.simulation.world.fleet import FLEETS

SHARDS = 20
"""Tests that share the histories, so that each is far from its deadline on a busy machine."""

HISTORIES = 2000

DAILY_SHARDS = 12
"""1,200 histories run daily, the others nightly."""


histories = st.binary(
    min_size=SPEC_BYTES + LEAST_STEPS * STEP_BYTES, max_size=SPEC_BYTES + MOST_STEPS * STEP_BYTES
)


@pytest.fixture(autouse=True)
def rare_garbage_collection() -> Iterator[None]:
    """A history leaves little behind: looking for it all the time takes a fifth of all time."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, *thresholds[1:])
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(
    "shard",
    [
        pytest.param(shard, marks=() if shard < DAILY_SHARDS else pytest.mark.nightly)
        for shard in range(SHARDS)
    ],
)
def test_invariants_hold_in_random_histories(shard: int) -> None:
    lived = steps = 0
    fleets = Counter[str]()

    @settings(
        max_examples=HISTORIES // SHARDS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @seed(shard)
    @given(history=histories)
    def every_invariant_holds(history: bytes) -> None:
        nonlocal lived, steps
        note(f"to run it again: python -m tests.simulation {history.hex()}")
        simulation = run(history)
        steps += simulation.steps
        lived += 1
        fleets[simulation.server.fleet.name] += 1

    every_invariant_holds()
    print(f"{lived} histories of {steps / lived:.0f} steps: {fleets}")
    assert lived >= HISTORIES // SHARDS
    assert steps >= lived * LEAST_STEPS * 0.9
    assert len(fleets) == len({fleet.name for fleet in FLEETS})

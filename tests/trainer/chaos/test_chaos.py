"""Hundreds of ranks killed at random moments: every run ends like an undisturbed one.

`make chaos` and the nightly run include it. Each test prints its seed at its start; with
`CHAOS_SEED` a run repeats the faults of an earlier one.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.chaos.blows import blows
from tests.trainer.chaos.disturbance import PATIENCE, STACKS, Disturbance
from tests.trainer.library.runs import on
from tests.trainer.support.pods import Job, assert_same, job
from tests.trainer.support.preloaded import CPU, SCRIPT, STREAM

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1200)]

VICTIMS = {CPU: 25, STREAM: 55, SCRIPT: 55}
"""Victims of each test, over as many runs as needed: 330 where a device queues its work, because
these include all faults of a CPU.
"""


def flags(of: Job) -> list[str]:
    """Return flags of a run with frequent saves."""
    return [
        *("--epochs", "4", "--checkpoint-every-steps", "3"),
        *("--trace-samples", str(of.traces)),
        # Running statistics, and more than one bucket.
        *("--workload", "tests.trainer.support.norm:load", "--bucket-cap-mb", "0.01"),
    ]


@pytest.mark.parametrize(
    ("nodes", "local_world_size", "forkserver"),
    [
        (1, 2, CPU),
        (2, 1, CPU),
        (1, 3, CPU),
        (2, 2, CPU),
        (1, 2, STREAM),
        (1, 3, STREAM),
        (2, 2, STREAM),
        (1, 2, SCRIPT),
        (1, 3, SCRIPT),
        (2, 2, SCRIPT),
    ],
    ids=[
        *("2", "1+1", "3", "2+2", "2 streams", "3 streams", "2+2 streams"),
        *("script, 2 streams", "script, 3 streams", "script, 2+2 streams"),
    ],
)
def test_all_runs_end_the_same(
    nodes: int,
    local_world_size: int,
    forkserver: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.randrange(1, 2**32)
    with capsys.disabled():
        print(f"\nCHAOS_SEED={seed}", flush=True)
    ranks = nodes * local_world_size
    schedule = blows(seed, ranks=ranks)
    shape: dict[str, Any] = {
        "nodes": nodes,
        "local_world_size": local_world_size,
        "extra_environment": STACKS | on("stream"),
        "forkserver": forkserver,
    }
    with job(tmp_path / "undisturbed", **shape) as undisturbed:
        for pod in undisturbed.start_all(*flags(undisturbed)):
            assert pod.wait() == 0, pod.log
    victims, enough = 0, VICTIMS[forkserver]
    for number in itertools.count(1):
        with job(tmp_path / str(number), **shape) as wounded:
            wounded.start_all(*flags(wounded), *PATIENCE)
            disturbance = Disturbance(wounded)
            disturbance.strike(schedule, at_most=enough - victims)
            assert_same_end(wounded, undisturbed)
        print(f"run {number} of {ranks} ranks: {disturbance.toll}")
        victims += disturbance.toll.total
        if victims >= enough:
            return


def assert_same_end(actual: Job, expected: Job) -> None:
    last_step = max(expected.steps_of(0))
    assert_same(actual.state(last_step), expected.state(last_step))
    for rank in range(expected.nodes * expected.local_world_size):
        assert actual.steps_of(rank) == expected.steps_of(rank)

"""A script takes the same steps while its group changes its size, without knowing of it.

It clips gradients by hand after each of its batches, as if that were all of a step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.library.runs import script_job
from tests.trainer.support.membership_changes import FLAGS, World, losses_of, resize
from tests.trainer.support.pods import Job

RANKS = 3


def train(folder: Path, *sizes: int, variables: dict[str, str]) -> Job:
    with script_job(folder, ranks=RANKS, nodes=RANKS, variables=variables) as of:
        world = World(of, [*FLAGS, "--trace-samples", str(of.traces)])
        world.start_all(RANKS)
        resize(world, *sizes)
        return of


def samples_of(of: Job) -> dict[int, set[int]]:
    """Return the loss of each step; a rank may compute a step again in vain."""
    found: dict[int, set[int]] = {}
    for rank in range(RANKS):
        for step, samples in of.begun_by(rank):
            found.setdefault(step, set()).update(samples)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return train(tmp_path_factory.mktemp("undisturbed"), variables={})


@pytest.mark.parametrize("fewer", [1, 2])
def test_an_unchanged_script_takes_the_same_steps(
    fewer: int, tmp_path: Path, undisturbed: Job
) -> None:
    variables = {"DDP_BATCH": "global", "DDP_BATCH_RANKS": str(RANKS)}
    elastic = train(tmp_path, fewer, RANKS, variables=variables)
    assert samples_of(elastic) == samples_of(undisturbed)
    losses = losses_of(undisturbed)
    assert list(losses) == [10, 20, 30]
    if RANKS % fewer == 0:  # else batch norm and dropout see batches of another size
        assert losses_of(elastic) == pytest.approx(losses, rel=1e-6)
    states = [of.state(max(losses)) for of in (elastic, undisturbed)]
    assert states[0]["position"] == states[1]["position"]
    assert states[0]["scheduler"] == states[1]["scheduler"]

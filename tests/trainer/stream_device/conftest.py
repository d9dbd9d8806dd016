"""What the tests on devices with a stream have in common."""

from __future__ import annotations

import pytest

from tests.trainer.pods import Job, job
from tests.trainer.stream_device.runs import LAUNCHER, Undisturbed, run_to_its_end


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """One run of each number of ranks, for all tests."""
    known: dict[int, Job] = {}

    def run(ranks: int) -> Job:
        if ranks not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{ranks}")
            with job(folder, nodes=1, local_world_size=ranks, launcher=LAUNCHER) as reference:
                run_to_its_end(reference)
            known[ranks] = reference
        return known[ranks]

    return run

"""Training that ends after some steps and later continues as if it had not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.support.pods import Job, assert_same, job

RANKS = 2
LAST_STEP = 46  # 2 epochs of ceil(ceil(1438 / 2) / 32) steps


def flags(of: Job, *more: str) -> list[str]:
    return [
        *("--epochs=2", "--schedule=constant", "--warmup-steps=5", f"--trace-samples={of.traces}"),
        *more,
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a run without a limit."""
    with job(tmp_path_factory.mktemp("whole"), nodes=1, local_world_size=RANKS) as unlimited:
        [pod] = unlimited.start_all(*flags(unlimited))
        assert pod.wait() == 0, pod.log
    return unlimited


def test_training_ends_after_so_many_steps_and_resumes(tmp_path: Path, whole: Job) -> None:
    limit = 10
    with job(tmp_path, nodes=1, local_world_size=RANKS) as limited:
        [pod] = limited.start_all(*flags(limited, f"--max-steps={limit}"))
        assert pod.wait() == 0, pod.log
        assert pod.message["step"] == pod.message["totalSteps"] == limit
        assert 0 < pod.message["accuracy"] < 1
        assert f"step-{limit:08d}" in pod.message["checkpoint"]["path"]
        for rank in range(RANKS):
            assert max(limited.steps_of(rank)) == limit

        [again] = limited.start_all(*flags(limited, f"--max-steps={limit}"))
        assert again.wait() == 0, again.log
        assert again.message["step"] == again.message["totalSteps"] == limit

        [rest] = limited.start_all(*flags(limited))
        assert rest.wait() == 0, rest.log
        assert rest.message["totalSteps"] == LAST_STEP
        for rank in range(RANKS):
            assert limited.begun_steps_of(rank) == list(range(1, LAST_STEP + 1)), "none twice"
        assert_same(limited.state(LAST_STEP), whole.state(LAST_STEP))

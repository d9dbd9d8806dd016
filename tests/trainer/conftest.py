"""Fixtures of tests with whole runs."""

from __future__ import annotations

import pytest

from tests.trainer.support.pods import Job, job
from tests.trainer.support.runs import Undisturbed, run_to_its_end

LAUNCHERS_VARIABLES = (
    "RANK",
    "DDP_BACKEND",
    "DDP_CHECKPOINT_DIR",
    "DDP_STATUS_FILE",
    "DDP_REPORT_FD",
)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a job of its own."""
    for name in LAUNCHERS_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return one run of each kind, for all tests."""
    known: dict[tuple[int, str], Job] = {}

    def run(ranks: int, forkserver: str) -> Job:
        kind = ranks, forkserver
        if kind not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{ranks}")
            with job(folder, nodes=1, local_world_size=ranks, forkserver=forkserver) as undisturbed:
                run_to_its_end(undisturbed)
            known[kind] = undisturbed
        return known[kind]

    return run

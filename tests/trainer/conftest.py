"""Fixtures of tests with whole runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddp_trainer.library import join
from ddp_trainer.library.sharded.device_mesh import release_default_group
from torch import distributed as dist

from tests.trainer.support.pods import Job, job
from tests.trainer.support.runs import Undisturbed, run_to_its_end

LAUNCHERS_VARIABLES = (
    "RANK",
    "DDP_BACKEND",
    "DDP_CHECKPOINT_DIR",
    "DDP_STATUS_FILE",
    "DDP_REPORT_FD",
)


@pytest.fixture(autouse=True)
def _each_test_ends_its_group() -> Iterator[None]:
    """Fail a test that leaves a process group, which later tests would take for their own."""
    yield
    if left := dist.is_initialized():
        dist.destroy_process_group()
    assert not left, "the test leaves a process group: end it, or use the fixture no_launcher"


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process a job of its own, and each training in it one of a new process."""
    monkeypatch.setattr(join, "_joined", _Nothing())
    for name in LAUNCHERS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    release_default_group()


class _Nothing(set[str]):
    """Forgets the trainings that have ended."""

    def add(self, _: str) -> None:
        """Remember nothing."""


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

"""Snapshots of a model that FSDP2 shards on a GPU: all ranks resume from memory, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.gpu.runs import run_alone
from tests.trainer.memory import test_restarts, test_sharded
from tests.trainer.memory.fsdp import DEVICE_VARIABLE

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts train there."""
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")


def test_each_rank_resumes_from_its_own_snapshot(tmp_path: Path) -> None:
    test_sharded.test_sharded_training_continues_bit_for_bit(tmp_path)


def test_a_killed_rank_makes_all_resume(tmp_path: Path) -> None:
    test_restarts.test_a_killed_rank_makes_all_resume_in_their_pods(tmp_path)


def test_a_lost_pod_resumes_from_the_memory_of_another(tmp_path: Path) -> None:
    test_restarts.test_a_lost_pod_resumes_from_the_memory_of_another(tmp_path)


def test_a_save_takes_as_long_as_a_copy() -> None:
    """CUDA locks the memory of both files at the first saves."""
    *_, last = saves = run_alone("saving", "4")
    print(*saves, sep="\n")
    assert last["saved"]
    assert last["seconds"] < 3 * last["a copy, seconds"]

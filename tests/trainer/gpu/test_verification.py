"""Ranks with flipped bits or wrong gradients on a GPU end, and the others return."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.exit_codes import ExitCode

from tests.trainer.library.checks import test_gradient_probes, test_verification
from tests.trainer.library.checks.flipping import FAULT
from tests.trainer.library.checks.test_gradient_probes import STEPS, probes_of
from tests.trainer.library.checks.test_verification import ends_of
from tests.trainer.library.runs import script_job

pytestmark = [pytest.mark.timeout(600)]
NCCL = {"DDP_BACKEND": "nccl", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def settings_of(ranks: int) -> dict[str, Any]:
    return {"ranks": ranks, "nodes": ranks, "device": "cuda", "script": "flips"}


def run_to_its_end(
    folder: Path, variables: Mapping[str, str], *, ranks: int, epochs: int = 2
) -> str:
    """Return the logs of all ranks."""
    with script_job(folder, **settings_of(ranks), variables={**variables, **NCCL}) as job:
        pods = job.start_all("--epochs", str(epochs))
        assert [pod.wait() for pod in pods] == [0] * ranks, pods[0].log
        return "\n".join(pod.log for pod in pods)


def ends_after_a_fault(folder: Path, variables: Mapping[str, str]) -> tuple[list[str], str]:
    """Run three ranks; rank 1 ends and has a successor. Return all ends and rank 0's log."""
    with script_job(folder, **settings_of(3), variables={**variables, **NCCL}) as job:
        first, failed, last = job.start_all("--epochs", "2")
        assert failed.wait() == ExitCode.FLIPPED_BITS, failed.log
        successor = job.start(1, "--epochs", "2")
        for pod in (first, last, successor):
            assert pod.wait() == 0, pod.log
        return ends_of(*(pod.log for pod in job.pods)), first.log


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the ends of three ranks without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return ends_of(
        run_to_its_end(folder, test_verification.variables(folder, [], every=0), ranks=3)
    )


def test_a_rank_with_a_flipped_bit_ends_and_the_others_return(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    more = test_verification.variables(tmp_path, [(1, 13, "parameter")], every=5)
    ends, log = ends_after_a_fault(tmp_path, more)
    assert "returning from step 15 to step" in log
    assert ends == undisturbed


def test_a_rank_with_wrong_gradients_ends_and_the_others_return(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    more = test_gradient_probes.variables(tmp_path, probe_every=5) | {FAULT: "[1, 12]"}
    ends, log = ends_after_a_fault(tmp_path, more)
    assert re.search(r"gradients last equal at step 10.*; returning from step 15 to step", log)
    assert ends == undisturbed


def test_probes_report_nothing_and_leave_no_trace(tmp_path: Path) -> None:
    ends = []
    for every in (1, 0):
        (folder := tmp_path / str(every)).mkdir()
        more = test_gradient_probes.variables(folder, probe_every=every)
        log = run_to_its_end(folder, more, ranks=2, epochs=4)
        assert probes_of(log) == [*range(1, 4 * STEPS + 1)] * every, log
        assert "flipped bits" not in log
        ends.append(ends_of(log))
    assert ends[0] == ends[1]

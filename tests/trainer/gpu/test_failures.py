"""A process with a failed GPU is restarted, and a killed process leaves its memory free."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.gpu.runs import run_script

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("device assert", "CUDA error: device-side assert triggered"),
        ("illegal address", "CUDA error: an illegal memory access was encountered"),
        ("out of memory", "CUDA out of memory"),
        ("kill", "was killed (SIGKILL)"),
    ],
)
def test_process_with_a_failed_device_is_restarted(fault: str, error: str, tmp_path: Path) -> None:
    pod = run_script(tmp_path, "faulty", fault, str(tmp_path / "marker"))
    print(pod.log)
    assert pod.process.poll() == 0, pod.log
    assert pod.log.count("restarting it") == 1, pod.log
    assert error in pod.log
    assert "took all its steps" in pod.log


def test_the_successor_of_a_killed_rank_finds_the_memory_free(tmp_path: Path) -> None:
    """It allocates three quarters at once, like its predecessor."""
    pod = run_script(tmp_path, "faulty", "kill", str(tmp_path / "marker"), "0.75")
    print(pod.log)
    assert pod.process.poll() == 0, pod.log
    assert "out of memory" not in pod.log
    assert pod.log.count("restarting it") == 1

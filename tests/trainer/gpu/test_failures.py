"""Who ends a process whose GPU failed, in which words; and what a killed process leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.gpu.runs import run_script

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("device assert", "CUDA error: device-side assert triggered"),
        ("illegal address", "CUDA error: an illegal memory access was encountered"),
        ("out of memory", "CUDA out of memory"),
        ("kill", "was killed (SIGKILL)"),
    ],
)
def test_a_process_whose_device_failed_is_started_again(
    fault: str, words: str, tmp_path: Path
) -> None:
    pod = run_script(tmp_path, "faulty", fault, str(tmp_path / "was here"))
    print(pod.log)
    assert pod.process.poll() == 0, pod.log
    assert pod.log.count("restarting it") == 1, pod.log
    assert words in pod.log
    assert "took all its steps" in pod.log


def test_the_successor_of_a_killed_rank_finds_the_memory_free(tmp_path: Path) -> None:
    """It takes three quarters of it at once, as its predecessor did."""
    pod = run_script(tmp_path, "faulty", "kill", str(tmp_path / "was here"), "0.75")
    print(pod.log)
    assert pod.process.poll() == 0, pod.log
    assert "out of memory" not in pod.log
    assert pod.log.count("restarting it") == 1

"""Activity of a process as the kernel reports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ddp_trainer.system.activity import Activity, read_activity

from tests.trainer.support.pods import until

SPIN = "while True: pass"


def test_a_process_that_computes_until_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN]) as spinning:
        try:

            def seconds() -> float:
                activity = read_activity(spinning.pid)
                assert activity is not None
                return activity.cpu_seconds

            first = seconds()
            until(lambda: seconds() > first, "it to compute")
            spinning.send_signal(signal.SIGSTOP)
            until(lambda: " T " in Path(f"/proc/{spinning.pid}/stat").read_text(), "it to stop")
            stopped = seconds()
            assert [seconds() for _ in range(100)] == [stopped] * 100
        finally:
            spinning.kill()
    assert read_activity(spinning.pid) is None, "it is gone"


def stat(
    folder: Path, name: str, state: str, *, user_ticks: int = 0, kernel_ticks: int = 0
) -> None:
    folder.mkdir(parents=True)
    numbers = [0] * 10 + [user_ticks, kernel_ticks] + [0] * 30
    folder.joinpath("stat").write_text(f"7 ({name}) {state} {' '.join(map(str, numbers))}\n")


def test_process_with_one_thread_that_waits_for_a_disk(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat(tmp_path / "7", "ddp) D (rank 0", "S", user_ticks=2 * ticks, kernel_ticks=ticks)
    stat(tmp_path / "7" / "task" / "7", "ddp) D (rank 0", "S")
    assert read_activity(7, tmp_path) == Activity(cpu_seconds=3.0, waits_for_disk=False)
    stat(tmp_path / "7" / "task" / "8", "save", "D")
    assert read_activity(7, tmp_path) == Activity(cpu_seconds=3.0, waits_for_disk=True)
    assert read_activity(9, tmp_path) is None

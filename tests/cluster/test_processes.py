"""A process is killed only when it is the very one on record."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import wait_until
from tests.cluster.processes import ProcessId, marked, spawn, stop

SLEEP = ["sleep", "1000"]
IGNORE_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    process = ProcessId.of(spawn(SLEEP, log=tmp_path / "log", marker=tmp_path))
    assert process is not None
    yield process
    stop([process])


def test_process_is_stopped_only_by_its_own_identity(sleeper: ProcessId) -> None:
    earlier = dataclasses.replace(sleeper, started="another-boot/1")
    assert not earlier.alive()
    assert stop([earlier]) == set()
    assert sleeper.alive()
    wait_until(lambda: sleeper.command() == "sleep 1000", what="sleep", deadline_s=30)
    assert stop([sleeper]) == set()
    assert not sleeper.alive()
    assert ProcessId.of(sleeper.pid) is None
    assert sleeper.command() == ""


def test_stop_returns_who_survives(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stubborn = ProcessId.of(
        spawn([sys.executable, "-c", IGNORE_SIGTERM + "time.sleep(1000)"], log=log, marker=tmp_path)
    )
    assert stubborn is not None
    wait_until(lambda: "1" in log.read_text(), what="signal handler", deadline_s=30)
    assert stop([stubborn], sig=signal.SIGTERM, deadline_s=0.1) == {stubborn}
    assert stop([stubborn]) == set()


def test_a_zombie_counts_as_ended(tmp_path: Path) -> None:
    pid = spawn(["true"], log=tmp_path / "log", marker=tmp_path)
    wait_until(lambda: ProcessId.of(pid) is None, what="zombie", deadline_s=30)
    assert Path(f"/proc/{pid}").exists(), "the kernel keeps it until its parent asks"
    os.waitpid(pid, 0)


def test_marked_finds_what_nobody_recorded(sleeper: ProcessId, tmp_path: Path) -> None:
    wait_until(lambda: marked(tmp_path) == {sleeper}, what="marker", deadline_s=30)
    # Neither part of the marker's value nor a longer one is the same marker.
    assert marked(tmp_path / "other") == set()
    assert marked(tmp_path.parent) == set()

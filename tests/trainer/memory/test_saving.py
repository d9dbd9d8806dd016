"""A rank saves its state in the pod's volume or logs why not; training continues."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer import memory
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory import saving
from ddp_trainer.memory.pausing import PauseRequest
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import Volume
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.settings.environment import Environment

from tests.trainer.memory.pods import listening, variables
from tests.trainer.memory.sameness import same
from tests.trainer.memory.states import restored
from tests.trainer.support.mounts import with_own_mounts
from tests.trainer.support.pods import until

STATE = {"weight": torch.arange(5000.0), "frozen": torch.ones(3, 4).T, "raw": b"abc", "n": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "own" / "0"


def volume_at(directory: Path, **more: Any) -> Volume:
    volume = Volume.from_env(variables(directory, **more))
    assert volume is not None
    return volume


def saver_at(directory: Path, **more: Any) -> Saver:
    env = variables(directory, **more)
    return Saver(volume_at(directory, **more), CurrentAssignment(Environment.from_env(env)))


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def content(path: Path) -> Any:
    return restored(bytearray(path.read_bytes()))


def free(folder: Path, name: str) -> None:
    """Offer a file for the next snapshot, as the launcher does."""
    (folder / name).rename(folder / "free")


def test_a_saved_state_is_in_a_file_of_its_step(tmp_path: Path, folder: Path) -> None:
    assert saver_at(tmp_path).save(7, STATE, replicated=False)
    assert files(folder) == ["1-7-0-1-sharded.snapshot"]
    assert same(content(folder / "1-7-0-1-sharded.snapshot"), STATE)
    assert (folder / "1-7-0-1-sharded.snapshot").stat().st_mode & 0o077 == 0


def test_the_launcher_receives_a_report_of_each_save(tmp_path: Path) -> None:
    saver = saver_at(tmp_path, size=1 << 20)
    with listening(volume_at(tmp_path)) as reports:
        saver.save(1, STATE, replicated=False)
        saver.save(2, STATE, replicated=True)
        saver.save(3, STATE, replicated=False)
        saver.save(4, torch.zeros(1 << 20), replicated=False)
        found = reports.read()
    own = {"rank": 0, "generation": 1}
    assert found[:3] == [
        {**own, "step": 1, "replicated": False, "saved": True},
        {**own, "step": 2, "replicated": True, "saved": True},
        {**own, "step": 3, "replicated": False, "saved": False},
    ]
    assert {**own, "step": 4, "replicated": False, "saved": False}.items() <= found[3].items()
    assert "sizeLimit" in found[3]["refusal"]


def test_launcher_receives_a_report_of_a_skipped_step(tmp_path: Path) -> None:
    saver_at(tmp_path).save(1, STATE, replicated=False)
    again = saver_at(tmp_path)  # of the next process
    with listening(volume_at(tmp_path)) as reports:
        again.skip(1)  # it is there
        again.skip(2)
        found = reports.read()
    assert found == [{"rank": 0, "generation": 1, "step": 2, "replicated": False, "saved": False}]


def test_it_saves_no_third_snapshot_until_the_launcher_frees_one(
    tmp_path: Path, folder: Path
) -> None:
    saver = saver_at(tmp_path)
    assert [saver.save(step, STATE, replicated=False) for step in (1, 2, 3)] == [True, True, False]
    assert files(folder) == ["1-1-0-1-sharded.snapshot", "1-2-0-1-sharded.snapshot"]
    free(folder, "1-1-0-1-sharded.snapshot")
    assert saver.save(4, STATE, replicated=False)
    assert files(folder) == ["1-2-0-1-sharded.snapshot", "1-4-0-1-sharded.snapshot"]


@pytest.mark.parametrize(
    ("name", "takes_a_slot"),
    [
        ("0-9-0-1-sharded.snapshot", True),
        ("0-9-1-2-sharded.snapshot", False),
        ("0-9-0-1-replicated.snapshot", False),
    ],
)
def test_a_restored_snapshot_takes_one_of_the_slots(
    tmp_path: Path, name: str, takes_a_slot: bool
) -> None:
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / name).touch()
    saver = saver_at(tmp_path)
    assert saver.save(1, STATE, replicated=False)
    assert saver.save(2, STATE, replicated=False) != takes_a_slot


@pytest.mark.parametrize("count", [10, 5000, 20_000])
def test_a_freed_file_is_written_again(tmp_path: Path, folder: Path, count: int) -> None:
    saver = saver_at(tmp_path)
    saver.save(1, STATE, replicated=False)
    inode = (folder / "1-1-0-1-sharded.snapshot").stat().st_ino
    free(folder, "1-1-0-1-sharded.snapshot")
    state = {"weight": torch.rand(count)}
    assert saver.save(2, state, replicated=False)
    path = folder / "1-2-0-1-sharded.snapshot"
    assert path.stat().st_ino == inode
    assert same(content(path), state)
    assert files(folder) == [path.name]


def mapped(folder: Path) -> list[str]:
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]


def test_files_stay_mapped_until_the_launcher_removes_them(tmp_path: Path, folder: Path) -> None:
    saver = saver_at(tmp_path)
    saver.save(1, STATE, replicated=False)
    saver.save(2, STATE, replicated=False)
    assert len(mapped(folder)) == 2
    for each in folder.iterdir():
        each.unlink()
    saver.save(3, STATE, replicated=False)
    [line] = mapped(folder)
    assert "deleted" not in line


def test_too_large_state_is_refused_with_the_size_that_fits(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = torch.zeros(1 << 20)
    saver = saver_at(tmp_path, ranks=2, size=8 << 20)
    assert not saver.save(1, state, replicated=False)
    assert not saver.save(2, state, replicated=False)
    [record] = caplog.records
    assert len(record.getMessage()) <= 200
    found = re.search(r"sizeLimit to (\d+)Mi", record.getMessage())
    assert found is not None
    assert files(folder) == []
    assert saver_at(tmp_path, ranks=2, size=int(found[1]) << 20).save(3, state, replicated=False)
    assert not saver_at(tmp_path, ranks=2, size=(int(found[1]) - 1) << 20).save(
        4, state, replicated=False
    )


def test_a_replicated_state_has_one_file_in_each_pod(tmp_path: Path) -> None:
    state = torch.zeros(1 << 20)
    size = 2 * ((4 << 20) + 4096)
    assert saver_at(tmp_path, ranks=2, size=size).save(1, state, replicated=True)
    with listening(volume_at(tmp_path)) as reports:
        assert not saver_at(tmp_path, rank=1, ranks=2, size=size).save(1, state, replicated=True)
        assert reports.read() == []
    assert files(tmp_path / "own") == ["0"]
    assert files(tmp_path / "own" / "0") == ["1-1-0-2-replicated.snapshot"]


def test_a_skipped_step_is_not_saved_later(tmp_path: Path, folder: Path) -> None:
    saver = saver_at(tmp_path)
    assert [saver.save(step, STATE, replicated=False) for step in (1, 2, 3)] == [True, True, False]
    free(folder, "1-1-0-1-sharded.snapshot")
    with listening(volume_at(tmp_path)) as reports:
        assert not saver.save(3, STATE, replicated=False)
        assert reports.read() == []
    assert saver.save(4, STATE, replicated=False)


def test_a_step_is_saved_once(tmp_path: Path, folder: Path) -> None:
    saver = saver_at(tmp_path)
    with listening(volume_at(tmp_path)) as reports:
        assert saver.save(5, STATE, replicated=False)
        assert saver.save(5, {}, replicated=False)
        assert len(reports.read()) == 1
    assert same(content(folder / "1-5-0-1-sharded.snapshot"), STATE)
    with pytest.raises(ValueError, match="step is 4 after step 5"):
        saver.save(4, STATE, replicated=False)


def test_ranks_that_join_may_take_steps_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    saving._saver.cache_clear()
    try:
        saver = saving.follow(CurrentAssignment(Environment.from_env(os.environ)))
        assert saver is not None
        with listening(volume_at(tmp_path)) as reports:
            assert memory.save(5, STATE)
            assert not memory.save(4, STATE), "ranks returned to an earlier step"
            assert memory.save(5, {})
            assert len(reports.read()) == 1
            assert memory.save(6, STATE)
    finally:
        saving._saver.cache_clear()
    assert files(folder) == ["1-5-0-1-sharded.snapshot", "1-6-0-1-sharded.snapshot"]


@pytest.mark.parametrize("step", [-1, 2**63, 1.0, True, "1"])
def test_wrong_steps_are_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ValueError, match="step is"):
        saver_at(tmp_path).save(step, STATE, replicated=False)


def test_a_launcher_that_does_not_read_delays_no_save(tmp_path: Path, folder: Path) -> None:
    saver = saver_at(tmp_path)
    with listening(volume_at(tmp_path)):
        for step in range(600):  # more than a socket holds
            assert saver.save(step, {}, replicated=False)
            free(folder, f"1-{step}-0-1-sharded.snapshot")


def test_a_save_that_failed_leaves_its_file_to_the_next_one(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error")

    saver = saver_at(tmp_path)
    saver.save(1, STATE, replicated=False)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_fill", fail)
        with pytest.raises(RuntimeError, match="CUDA error"):
            saver.save(2, STATE, replicated=False)
    assert files(folder) == ["1-1-0-1-sharded.snapshot", "part"]
    assert saver.save(3, STATE, replicated=False)
    assert files(folder) == ["1-1-0-1-sharded.snapshot", "1-3-0-1-sharded.snapshot"]


def run(
    program: str, directory: Path, *, prefix: tuple[str, ...] = (), **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script of a rank."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **variables(directory, **more)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_rank_that_is_killed_while_it_saves_leaves_no_snapshot(
    tmp_path: Path, folder: Path
) -> None:
    found = run(
        """
        import os, signal, torch
        from ddp_trainer import memory
        from ddp_trainer.memory import saving

        fill = saving._fill

        def killed(file, *rest):
            fill(file, *rest)
            os.kill(os.getpid(), signal.SIGKILL)

        memory.save(1, {"a": torch.ones(5)})
        saving._fill = killed
        memory.save(2, {"a": torch.ones(5)})
        """,
        tmp_path,
    )
    assert found.returncode == -signal.SIGKILL
    assert files(folder) == ["1-1-0-1-sharded.snapshot", "part"]


def test_a_full_volume_is_a_refusal_and_no_signal(tmp_path: Path) -> None:
    found = run(
        f"""
        import json, subprocess, torch
        from ddp_trainer import memory

        mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", {str(tmp_path)!r}]
        subprocess.run(mount, check=True)
        sizes = (1 << 20, 1 << 20, 100)
        print(json.dumps([memory.save(step, torch.ones(n)) for step, n in enumerate(sizes)]))
        """,
        tmp_path,
        prefix=tuple(with_own_mounts()),
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [True, False, True]
    assert "full: set spec.memoryCheckpoint.sizeLimit to a larger size" in found.stderr


def test_a_volume_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "own").touch()
    with listening(volume_at(tmp_path)) as reports:
        assert not saver_at(tmp_path).save(1, STATE, replicated=False)
        [report] = reports.read()
    assert "rank 0 cannot write to its volume" in report["refusal"]


def test_without_the_feature_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    saving._saver.cache_clear()
    monkeypatch.delenv("DDP_MEMORY_DIR", raising=False)
    assert not memory.save(1, STATE)
    saving._saver.cache_clear()


def test_process_without_a_rank_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK")
    saving._saver.cache_clear()
    with pytest.raises(ConfigurationError, match="RANK is not set"):
        memory.save(1, {})
    saving._saver.cache_clear()


def test_the_launcher_loads_no_torch() -> None:
    program = "import sys; from ddp_trainer.memory import volume; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_rank_0_pauses_after_a_snapshot_while_that_is_requested(tmp_path: Path) -> None:
    request = PauseRequest(volume_at(tmp_path))
    request.make(after=1)
    saver = saver_at(tmp_path)
    with listening(volume_at(tmp_path)) as reports:
        assert saver.save(1, STATE, replicated=False), "the request is for later steps"
        assert [each.get("paused") for each in reports.read()] == [None]
        saving = threading.Thread(target=saver.save, args=[2, STATE], kwargs={"replicated": False})
        saving.start()
        found: list[Any] = []

        def receive() -> bool:
            found.extend(reports.read())
            return len(found) > 3

        until(receive, "reports")
        assert saving.is_alive()
        own = {"rank": 0, "generation": 1, "step": 2, "replicated": False, "saved": True}
        assert found[:3] == [own, own | {"paused": True}, own | {"paused": True}]
        request.withdraw()
        saving.join(60)
        assert not saving.is_alive()


def test_other_ranks_and_skipped_steps_do_not_pause(tmp_path: Path) -> None:
    PauseRequest(volume_at(tmp_path)).make(after=-1)
    assert saver_at(tmp_path, rank=1, ranks=2).save(1, STATE, replicated=False)
    assert not saver_at(tmp_path, size=1 << 10).save(1, STATE, replicated=False)

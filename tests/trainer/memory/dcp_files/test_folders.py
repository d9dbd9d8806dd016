"""The list of saved folders, and what is left of them before a script starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.launcher.local_checkpoints import LocalCheckpoints
from ddp_trainer.memory.dcp_files.folders import Saved, SavedFolders, remove, root_of
from ddp_trainer.memory.dcp_files.start import begin
from ddp_trainer.settings.environment import Environment
from ddp_trainer.telemetry.requests.stacks import HOOK

from tests.ports import free_port
from tests.trainer.memory.pods import launcher, variables
from tests.trainer.memory.states import snapshot_file


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a rank in the second generation; its pod's disk is `disk`."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "memory").mkdir()
    (tmp_path / "disk/ckpt").mkdir(parents=True)
    return {
        **variables(tmp_path / "memory", generation=2),
        "DDP_STATUS_PORT": str(free_port()),
        "DDP_CHECKPOINTS_IN_MEMORY": str(tmp_path / "disk/ckpt"),
        "DDP_LOCAL_PATHS": f"/elsewhere:{tmp_path}/disk",
    }


def saved(folder: Path, *names: str) -> Path:
    """Write the files of a checkpoint."""
    folder.mkdir(parents=True)
    for name in names or (".metadata", "__0_0.distcp"):
        (folder / name).write_text("of DCP")
    return folder


def listed(env: dict[str, str], generation: int, *folders: Path) -> SavedFolders:
    """List folders as saved in a generation."""
    found = SavedFolders.from_env(env)
    assert found is not None
    for folder in folders:
        found.note(str(folder), generation)
    return found


def answer_with(tmp_path: Path, state: Any) -> tuple[int, Any]:
    """Write a snapshot of a state; return the launcher's answer that names it."""
    path = tmp_path / "memory/one.snapshot"
    path.write_bytes(bytes(snapshot_file(state)))
    return 200, {"path": str(path), "step": 3, "generation": 1}


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_pod_keeps_only_the_checkpoint_that_all_pods_have(
    env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "disk/ckpt"
    folders = [saved(root / f"step-{step}") for step in (2, 3, 4)]
    saved(root / "pretrained")  # the script got it elsewhere
    listed(env, 1, *folders)
    answer = answer_with(tmp_path, {"folder": "step-3"})
    with launcher(Environment.from_env(env), answer) as one:
        begin(env)
        assert names(root) == ["pretrained", "step-3"]
        assert names(root / "step-3") == [".metadata", "__0_0.distcp"]
        assert "step-3 is in memory; removed 2 that" in capsys.readouterr().err
        saved(root / "step-4")
        listed(env, 2, root / "step-4")
        begin(env)  # another process of this generation
        assert names(root) == ["pretrained", "step-3", "step-4"]
        assert len(one.requests) == 1


def test_new_pod_shows_the_checkpoint_that_is_in_memory(
    env: dict[str, str], tmp_path: Path
) -> None:
    answer = answer_with(tmp_path, {"folder": "run/step-3"})
    with launcher(Environment.from_env(env), answer):
        begin(env)
    folder = tmp_path / "disk/ckpt/run/step-3"
    assert names(folder) == [".metadata"]
    found = SavedFolders(tmp_path / "memory").read()
    assert found == Saved(folders={str(folder): 1}, generation=2, restored=str(folder), step=3)
    assert found.is_in_memory
    listed(env, 2, folder)
    assert not SavedFolders(tmp_path / "memory").read().is_in_memory, "it was saved again"


def test_nothing_in_memory_leaves_no_checkpoint(env: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "disk/ckpt"
    listed(env, 1, saved(root / "step-3"))
    with launcher(Environment.from_env(env), (200, {"reason": "none"})):
        begin(env)
    assert names(root) == []


def test_first_generation_asks_nobody(env: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "disk/ckpt"
    saved(root / "step-3")
    begin({**env, "DDP_GENERATION": "0"})  # no launcher answers
    assert names(root) == ["step-3"]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"model": 1}, "is not of a checkpoint of DCP: remove DDP_CHECKPOINTS_IN_MEMORY"),
        ([1], "is not of a checkpoint of DCP"),
        ({"folder": "../other"}, "is of ../other, not below"),
    ],
)
def test_snapshot_of_something_else_ends_the_rank(
    state: Any,
    problem: str,
    env: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "disk/ckpt"
    listed(env, 1, saved(root / "step-3"))
    with (
        launcher(Environment.from_env(env), answer_with(tmp_path, state)),
        pytest.raises(SystemExit) as ended,
    ):
        begin(env)
    assert ended.value.code == 64
    assert problem in capsys.readouterr().err
    assert names(root) == ["step-3"]


def test_rank_without_a_decision_ends(
    env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "disk/ckpt"
    listed(env, 1, saved(root / "step-3"))
    with (
        launcher(Environment.from_env(env), (503, "it failed")),
        pytest.raises(SystemExit) as ended,
    ):
        begin(env)
    assert ended.value.code == 1
    assert "cannot resume from memory: rank 0 got no snapshot" in capsys.readouterr().err
    assert names(root) == ["step-3"]


def test_process_ends_before_its_script_with_the_code(env: dict[str, str]) -> None:
    del env["DDP_STATUS_PORT"]
    python_path = os.pathsep.join([str(HOOK), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", "print('the script runs')"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": python_path, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (64, "")
    assert "ddp_trainer: DDP_STATUS_PORT is not set" in ran.stderr


@pytest.mark.parametrize("paths", ["", "/elsewhere", "/disk/ckpt/below"])
def test_folder_that_other_pods_see_is_left_alone(
    paths: str, env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env["DDP_LOCAL_PATHS"] = paths.replace("/disk", f"{tmp_path}/disk")
    assert root_of(env) is None
    begin(env)
    assert "which is no emptyDir of a job with several pods" in capsys.readouterr().err


def test_only_files_of_dcp_are_removed(tmp_path: Path) -> None:
    of_dcp = (".metadata", ".metadata.tmp", "__0.metadata", "__12_3.distcp")
    folder = saved(tmp_path / "one", *of_dcp, "notes.txt")
    remove(str(folder))
    assert names(folder) == ["notes.txt"]
    remove(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "content", ["", "[", "[]", '{"folders": {}}', "9" * (2 << 20), '{"folders": {"a": "b"}}']
)
def test_damaged_list_counts_as_empty(content: str, tmp_path: Path) -> None:
    (tmp_path / "dcp.json").write_text(content)
    assert SavedFolders(tmp_path).read() == Saved()
    os.unlink(tmp_path / "dcp.json")
    os.mkfifo(tmp_path / "dcp.json")  # a launcher must not wait for its other end
    assert SavedFolders(tmp_path).read() == Saved()


def test_list_forgets_what_the_script_removed(env: dict[str, str], tmp_path: Path) -> None:
    old, new = saved(tmp_path / "disk/ckpt/step-1"), tmp_path / "disk/ckpt/step-2"
    listed(env, 1, old)
    remove(str(old))
    listed(env, 1, new)
    document = json.loads((tmp_path / "memory/dcp.json").read_text())
    assert document["folders"] == {str(new): 1}


def test_checkpoints_in_memory_do_not_forbid_a_restart_in_place(
    env: dict[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "disk/ckpt"
    in_memory = listed(env, 1, root / "step-1")
    saved(root / "step-1")
    found = LocalCheckpoints([str(root)], since=0.0, in_memory=in_memory)
    assert not found.exist()
    listed(env, 1, root / "step-2")
    saved(root / "step-2")
    assert not found.exist()
    assert LocalCheckpoints([str(root)], since=0.0).exist()
    (root / "step-2/latest.txt").write_text("other pods lack it")
    assert found.exist()
    (root / "step-2/latest.txt").unlink()
    found = LocalCheckpoints([str(root)], since=0.0, in_memory=in_memory)
    assert not found.exist()
    saved(root / "step-3")  # by a process that keeps nothing in memory
    assert found.exist()
    assert LocalCheckpoints.from_env(env)._in_memory is not None

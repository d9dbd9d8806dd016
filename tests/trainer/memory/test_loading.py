"""A rank loads the snapshot that its launcher names, or fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer import memory
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory import loading
from ddp_trainer.memory.file_format import decode
from ddp_trainer.memory.loading import NoSnapshotError
from ddp_trainer.memory.restoration import LEFT_OUT, MismatchError
from ddp_trainer.memory.volume import Key, SnapshotName
from ddp_trainer.settings.environment import Environment
from ddp_trainer.telemetry.status import StatusFile

from tests.ports import free_port
from tests.trainer.memory.pods import launcher, variables
from tests.trainer.memory.sameness import same
from tests.trainer.memory.states import snapshot_file

STATE = {"weight": torch.arange(6.0).view(2, 3), "epoch": 4}
NAME = SnapshotName(key=Key(1, 7), rank=0, world_size=1, replicated=False)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """The environment of this process, as of a rank."""
    status_file = tmp_path / "status.json"
    more = {"DDP_STATUS_PORT": str(free_port()), "DDP_STATUS_FILE": str(status_file)}
    env = {**variables(tmp_path / "memory", generation=2), **more}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Environment.from_env(env)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The snapshot's file."""
    folder = tmp_path / "memory" / "own" / "0"
    folder.mkdir(parents=True)
    path = folder / str(NAME)
    path.write_bytes(snapshot_file(STATE, NAME, "7d1f"))
    return path


def ready(path: Path) -> tuple[int, Any]:
    return 200, {"path": str(path), "step": 7, "generation": 1, "reason": ""}


def test_load_returns_step_and_state_once_the_snapshot_is_there(
    environment: Environment, path: Path
) -> None:
    with launcher(environment, (0, ""), (202, {}), (202, {}), ready(path)) as pod:
        found = memory.load()
        assert found is not None
        assert found[0] == 7
        assert same(found[1], STATE)
        assert pod.requests == [{"rank": 0, "generation": 2}] * 4
        assert same(memory.load(), (7, STATE))


def test_the_loaded_state_is_apart_from_the_file(environment: Environment, path: Path) -> None:
    with launcher(environment, ready(path)):
        found = memory.load()
    assert found is not None
    path.write_bytes(bytes(path.stat().st_size))
    found[1]["weight"].add_(1)
    assert same(found[1]["weight"], torch.arange(1.0, 7.0).view(2, 3))


def test_load_fills_the_tensors_of_the_training(environment: Environment, path: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    with launcher(environment, ready(path)):
        found = memory.load(into={"weight": parameter, "epoch": 0})
    assert found is not None
    assert found[1]["weight"] is parameter
    assert found[1]["epoch"] == 4
    assert same(parameter.data, STATE["weight"])
    assert parameter.requires_grad


def test_parts_of_a_snapshot_can_be_loaded_one_after_the_other(
    environment: Environment, path: Path
) -> None:
    with launcher(environment, ready(path)) as pod:
        found = loading.find()
        assert found is not None
        assert (found.step, found.replicated) == (7, False)
        parts = dict.fromkeys(STATE)
        assert found.read({**parts, "weight": LEFT_OUT}) == {**STATE, "weight": None}
        parameter = torch.zeros(2, 3)
        into = {**dict.fromkeys(STATE, LEFT_OUT), "weight": parameter}
        assert same(found.read(into), {**parts, "weight": STATE["weight"]})
        assert same(parameter, STATE["weight"])
        assert len(pod.requests) == 1


def test_a_state_of_another_model_is_an_error(environment: Environment, path: Path) -> None:
    with launcher(environment, ready(path)), pytest.raises(MismatchError, match="weight"):
        memory.load(into={"weight": torch.zeros(2, 4), "epoch": 0})


def test_without_a_snapshot_the_checkpoint_is_used(
    environment: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with launcher(environment, (200, {"path": None, "reason": "no pod has a snapshot"})):
        assert memory.load() is None
    assert "no pod has a snapshot" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        (404, "unknown path"),
        (409, {"reason": "the launcher is in generation 3"}),
        (503, {"reason": "no holder answered"}),
        (500, "[]"),
    ],
)
def test_a_rank_without_the_snapshot_of_the_others_fails(
    environment: Environment, answer: tuple[int, Any]
) -> None:
    reason = answer[1]["reason"] if isinstance(answer[1], dict) else answer[1]
    with launcher(environment, answer), pytest.raises(NoSnapshotError) as error:
        memory.load()
    assert str(error.value) == f"rank 0 got no snapshot: {reason}"


@pytest.mark.parametrize("text", ["", "[]", '{"path": 5}', '{"step": "x"}', "x" * 100_000])
def test_an_answer_of_another_form_is_no_snapshot(environment: Environment, text: str) -> None:
    with launcher(environment, (200, text)), pytest.raises(NoSnapshotError, match="rank 0"):
        memory.load()


def test_load_ends_at_its_deadline(environment: Environment) -> None:
    with launcher(environment, (202, {"reason": "pods 1 and 3 are missing"})) as pod:
        with pytest.raises(NoSnapshotError, match=r"within 0 s: pods 1 and 3 are missing"):
            loading.ask(environment, seconds=0.3)
        assert pod.requests


def test_a_launcher_that_does_not_answer_is_named(environment: Environment) -> None:
    with pytest.raises(NoSnapshotError, match=r"the launcher does not answer: .*refused"):
        loading.ask(environment, seconds=0.3)


def test_a_long_wait_is_logged(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "_LOG_SECONDS", 0.0)
    with launcher(environment, (202, {"reason": "not yet"}), (200, {"reason": "none"})):
        loading.ask(environment)
    assert "waiting for a snapshot in memory" in caplog.text
    assert "not yet" in caplog.text


def rewritten(**changes: Any) -> Callable[[Path], Path]:
    """Return a change of a snapshot's file to that of another one, under its right name."""

    def change(path: Path) -> Path:
        name = SnapshotName(**{**vars(NAME), **changes})
        other = path.with_name(str(name))
        other.write_bytes(snapshot_file(STATE, name, "7d1f"))
        return other

    return change


def written(content: bytes) -> Callable[[Path], Path]:
    def change(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return change


def linked(path: Path) -> Path:
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    return path


def outside(path: Path) -> Path:
    return path.rename(path.parents[3] / path.name)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (rewritten(rank=1, world_size=2), "of another rank or world size"),
        (rewritten(world_size=2), "of another rank or world size"),
        (written(b""), "cannot load"),
        (written(b"x" * 5000), "does not begin as a snapshot"),
        (written(bytes(snapshot_file(STATE, NAME, "other"))), "of job other"),
        (written(bytes(snapshot_file(STATE, NAME, "7d1f")[:-1])), "too early"),
        (
            written(bytes(snapshot_file(STATE, SnapshotName(**{**vars(NAME), "key": Key(1, 8)})))),
            "it is 1-8-0-1",
        ),
        (linked, "symbolic link"),
        (outside, "it is not in"),
        (lambda path: path.with_name("gone"), "No such file"),
        (lambda path: path.parent, "directory"),
    ],
)
def test_other_file_is_refused(
    environment: Environment, path: Path, change: Callable[[Path], Path], error: str
) -> None:
    with launcher(environment, ready(change(path))), pytest.raises(NoSnapshotError, match=error):
        memory.load()


def test_any_ranks_snapshot_of_a_replicated_state_is_loaded(
    environment: Environment, path: Path
) -> None:
    change = rewritten(rank=6, world_size=8, replicated=True)
    with launcher(environment, ready(change(path))):
        assert same(memory.load(), (7, STATE))


def test_snapshot_that_is_recycled_meanwhile_is_refused(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recycle(file: memoryview) -> Any:
        path.rename(path.with_name("free"))
        return decode(file)

    monkeypatch.setattr("ddp_trainer.memory.loading.decode", recycle)
    with launcher(environment, ready(path)), pytest.raises(NoSnapshotError, match="No such file"):
        memory.load()


def test_a_volume_without_a_status_port_is_an_error(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment.placement.status_port
    monkeypatch.delenv("DDP_STATUS_PORT")
    with pytest.raises(ConfigurationError, match="DDP_STATUS_PORT is not set"):
        memory.load()


def test_without_the_feature_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_MEMORY_DIR", raising=False)
    assert memory.load() is None


def test_the_resumed_step_is_reported(environment: Environment, path: Path, tmp_path: Path) -> None:
    with launcher(environment, ready(path)):
        memory.load()
    status = StatusFile(tmp_path / "status.json").read()
    assert status is not None
    assert status.resumed is not None
    assert (status.step, status.resumed.step) == (7, 7)

"""The callbacks of frameworks refuse trainings whose state they cannot save, with the remedy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError
from torch.distributed.fsdp import FullyShardedDataParallel

pytestmark = pytest.mark.slow


class Version1(FullyShardedDataParallel):
    """A module as version 1 of FSDP wraps it, without a process group."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)


class Adapted(torch.nn.Linear):
    """A model as PEFT wraps it."""

    __module__ = "peft.peft_model"


@pytest.fixture(autouse=True)
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep snapshots in memory."""
    variables = {"DDP_MEMORY_DIR": tmp_path, "DDP_MEMORY_BYTES": 1 << 20, "DDP_MEMORY_COPIES": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("model", "deepspeed", "error"),
    [
        (torch.nn.Sequential(Version1()), None, "set version to 2 in the fsdp_config"),
        (Adapted(1, 1), None, "does not support PEFT with fsdp: remove fsdp"),
        (torch.nn.Linear(1, 1), "zero3.json", "does not support deepspeed: remove it"),
        (torch.nn.Linear(1, 1), None, ""),
    ],
)
def test_trainer_of_hugging_face(
    model: torch.nn.Module, deepspeed: str | None, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddp_trainer.memory import huggingface  # noqa: PLC0415 - it takes seconds

    monkeypatch.setattr(huggingface, "_is_sharded", lambda _: True)
    arguments: Any = SimpleNamespace(deepspeed=deepspeed)
    refusal = pytest.raises(ConfigurationError, match=error)
    expected: AbstractContextManager[object] = refusal if error else nullcontext()
    with expected:
        huggingface.MemoryCheckpoint().on_train_begin(arguments, None, model=model)


def test_trainer_of_hugging_face_that_does_not_begin_at_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddp_trainer.memory import huggingface  # noqa: PLC0415 - as above

    placement = SimpleNamespace(job_uid="7d1f", node_rank=0, world_size=2)
    parts = {"generators": {}, "state": "{}", "names": ["weight"]}
    found = SimpleNamespace(
        step=5,
        replicated=False,
        environment=SimpleNamespace(local_rank=1, rank=1, placement=placement),
        read=lambda _: parts,
    )
    monkeypatch.setattr(huggingface, "find", lambda: found)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    callback = huggingface.MemoryCheckpoint()
    folder = callback.folder()
    assert folder == str(tmp_path / "ddp-memory-7d1f-0-1")
    assert sorted(file.name for file in Path(folder).iterdir()) == [
        "pytorch_model-00001-of-00001.bin",
        "pytorch_model.bin.index.json",
        "rng_state_1.pth",
        "trainer_state.json",
    ]
    arguments: Any = SimpleNamespace(deepspeed=None)
    state: Any = SimpleNamespace(global_step=0)
    with pytest.raises(ConfigurationError, match="is of step 5: pass the folder as resume_from"):
        callback.on_train_begin(arguments, state, model=torch.nn.Linear(1, 1))


@pytest.mark.nightly
def test_trainer_of_lightning() -> None:
    from ddp_trainer.memory.lightning import MemoryCheckpoint  # noqa: PLC0415 - as above
    from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy  # noqa: PLC0415

    for strategy, error in (
        (FSDPStrategy(), "does not support FSDPStrategy: use .* ModelParallelStrategy"),
        (ModelParallelStrategy(save_distributed_checkpoint=False), "remove it from Model"),
    ):
        trainer: Any = SimpleNamespace(strategy=strategy)
        with pytest.raises(ConfigurationError, match=error):
            MemoryCheckpoint().setup(trainer, None, "fit")

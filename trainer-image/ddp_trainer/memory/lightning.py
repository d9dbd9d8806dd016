"""Keeps the trainings of Lightning's `Trainer` in memory.

    from ddp_trainer.memory.lightning import MemoryCheckpoint

    memory_checkpoint = MemoryCheckpoint(every_steps=10)
    trainer = Trainer(..., callbacks=[memory_checkpoint])
    trainer.fit(model, loader, ckpt_path=memory_checkpoint.path() or newest_checkpoint)

It needs plain DDP: with FSDP or DeepSpeed, a rank has only a part of the model.
"""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.loading import load
from ddp_trainer.memory.saving import save
from ddp_trainer.memory.volume import Volume

_PATH = "ddp-memory"
"""Stands for the snapshot where Lightning wants the path of a checkpoint."""


class MemoryCheckpoint(Callback):  # type: ignore[misc]
    """Saves snapshots in memory, and resumes from them."""

    def __init__(self, *, every_steps: int = 1) -> None:
        """`every_steps`: optimizer steps from one snapshot to the next."""
        if every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}: it must be at least 1")
        self._every_steps = every_steps
        self._newest = 0
        """Step of the newest snapshot."""
        self._found: dict[str, Any] | None = None
        """The checkpoint to resume from, until Lightning loads it."""
        self._is_saving = False
        self._made: dict[str, Any] = {}
        """The checkpoint to save."""

    def path(self) -> str | None:
        """Return the `ckpt_path` for the newest snapshot; None if there is none in memory.

        All ranks call it before `Trainer.fit`. It is no path of a file: Lightning gets the snapshot
        from this callback.

        Raises:
            NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
        """
        found = load()
        if found is None:
            return None
        self._found = found[1]
        return _PATH

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Let Lightning load the snapshot, and refuse trainings that split their state."""
        if Volume.from_env(os.environ) is None:
            return
        strategy = trainer.strategy
        if isinstance(strategy, DeepSpeedStrategy) or not isinstance(
            strategy, DDPStrategy | SingleDeviceStrategy
        ):
            raise ConfigurationError(
                f"MemoryCheckpoint does not support {type(strategy).__name__}: use "
                'strategy="ddp", or save the state with ddp_trainer.memory.save'
            )
        if not isinstance(strategy.checkpoint_io, _MemoryIO):
            strategy.checkpoint_io = _MemoryIO(strategy.checkpoint_io, self)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Note the step, and refuse optimizers that split their state."""
        self._newest = trainer.global_step
        if Volume.from_env(os.environ) and any(
            isinstance(optimizer, ZeroRedundancyOptimizer) for optimizer in trainer.optimizers
        ):
            raise ConfigurationError(
                "MemoryCheckpoint does not support ZeroRedundancyOptimizer: each rank has only a "
                "part of its state"
            )

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Save a snapshot if it is time."""
        step = trainer.global_step
        if step - self._newest < self._every_steps or Volume.from_env(os.environ) is None:
            return
        self._newest = step
        self._is_saving = True
        trainer.save_checkpoint(_PATH, weights_only=False)
        self._is_saving = False
        save(step, self._made, replicated=True)
        self._made = {}

    def on_save_checkpoint(self, *parts: Any) -> None:
        """Note the content of a snapshot, which is complete when `save_checkpoint` returns.

        All ranks make it, but Lightning gives only that of rank 0 to storage.
        """
        if self._is_saving:
            *_, self._made = parts

    def take(self) -> dict[str, Any]:
        """Return the checkpoint to resume from, which belongs to the caller."""
        found, self._found = self._found, None
        if found is None:
            raise ValueError("call path() before each Trainer.fit that resumes from memory")
        return found


class _MemoryIO(CheckpointIO):  # type: ignore[misc]
    """Takes snapshots from the callback, and leaves all files to Lightning."""

    def __init__(self, files: CheckpointIO, callback: MemoryCheckpoint) -> None:
        self._files = files
        self._callback = callback

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *args: Any, **kw: Any) -> None:
        if path != _PATH:  # the callback saves it in all ranks
            self._files.save_checkpoint(checkpoint, path, *args, **kw)

    def load_checkpoint(self, path: Any, *args: Any, **kw: Any) -> dict[str, Any]:
        if path == _PATH:
            return self._callback.take()
        found: dict[str, Any] = self._files.load_checkpoint(path, *args, **kw)
        return found

    def remove_checkpoint(self, path: Any) -> None:
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        self._files.teardown()

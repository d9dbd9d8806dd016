"""Keeps the trainings of Lightning's `Trainer` in memory.

    from ddp_trainer.memory.lightning import MemoryCheckpoint

    memory_checkpoint = MemoryCheckpoint(every_steps=10)
    trainer = Trainer(..., callbacks=[memory_checkpoint])
    trainer.fit(model, loader, ckpt_path=memory_checkpoint.path() or newest_checkpoint)

With `ModelParallelStrategy`, each rank saves its own part of the model and the optimizer, its
loader's state and its random generators. With DDP, all ranks save the same state.
"""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_optimizer_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory import generators
from ddp_trainer.memory.loading import FoundSnapshot, find
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
        self._found: FoundSnapshot | None = None
        """The snapshot to resume from, until Lightning loads it."""
        self._strategy: Strategy | None = None
        """The one that gives this callback the snapshots."""
        self._generators: dict[str, Any] | None = None
        """States to continue with at the next step."""
        self._epoch: int | None = None
        """The epoch to continue with, until its first step."""

    def path(self) -> str | None:
        """Return the `ckpt_path` for the newest snapshot; None if there is none in memory.

        All ranks call it before `Trainer.fit`. It is no path of a file: Lightning gets the snapshot
        from this callback.

        Raises:
            NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
        """
        self._found = find()
        return None if self._found is None else _PATH

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Let Lightning save and load snapshots, and refuse unknown ways to split the state."""
        if Volume.from_env(os.environ) is None:
            return
        strategy = trainer.strategy
        if isinstance(strategy, DeepSpeedStrategy) or not isinstance(
            strategy, DDPStrategy | SingleDeviceStrategy | ModelParallelStrategy
        ):
            raise ConfigurationError(
                f"MemoryCheckpoint does not support {type(strategy).__name__}: use "
                'strategy="ddp" or ModelParallelStrategy, or save the state with '
                "ddp_trainer.memory.save"
            )
        if not getattr(strategy, "_save_distributed_checkpoint", True):
            raise ConfigurationError(
                "MemoryCheckpoint does not support save_distributed_checkpoint=False: remove it "
                "from ModelParallelStrategy"
            )
        if strategy is not self._strategy:
            self._strategy = strategy
            self._intercept(strategy)

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

    def on_train_batch_start(self, *_: object) -> None:
        """Restore the generators, because loaders have used them since the snapshot was loaded."""
        self._epoch = None
        if self._generators is not None:
            generators.restore(self._generators)
            self._generators = None

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Save a snapshot if it is time."""
        step = trainer.global_step
        if step - self._newest < self._every_steps or Volume.from_env(os.environ) is None:
            return
        self._newest = step
        trainer.save_checkpoint(_PATH, weights_only=False)

    def _intercept(self, strategy: Strategy) -> None:
        """Take the strategy's snapshots, and leave all files to it."""
        save_file, load_file = strategy.save_checkpoint, strategy.load_checkpoint
        process_loader = strategy.process_dataloader

        def save_checkpoint(
            checkpoint: dict[str, Any], filepath: Any, *args: Any, **kw: Any
        ) -> None:
            if filepath == _PATH:
                self._save(checkpoint)
            else:
                save_file(checkpoint, filepath, *args, **kw)

        def load_checkpoint(checkpoint_path: Any, *args: Any, **kw: Any) -> dict[str, Any]:
            if checkpoint_path == _PATH:
                return self._load(strategy)
            found: dict[str, Any] = load_file(checkpoint_path, *args, **kw)
            return found

        def process_dataloader(loader: object) -> object:
            # Lightning tells samplers the epoch only after it has made the first iterators.
            if self._epoch is not None:
                _set_epoch(loader, self._epoch)
            return process_loader(loader)

        strategy.save_checkpoint, strategy.load_checkpoint = save_checkpoint, load_checkpoint
        strategy.process_dataloader = process_dataloader

    def _save(self, checkpoint: dict[str, Any]) -> None:
        """Save a checkpoint; Lightning makes it in all ranks."""
        snapshot = {"model": checkpoint.pop("state_dict"), "rest": checkpoint}
        if isinstance(self._strategy, ModelParallelStrategy):
            save(self._newest, snapshot | {"generators": generators.states()})
        else:
            save(self._newest, snapshot, replicated=True)

    def _load(self, strategy: Strategy) -> dict[str, Any]:
        """Return the checkpoint to resume from, which belongs to the caller.

        The strategy has sharded the model already, which receives its part.
        """
        found, self._found = self._found, None
        if found is None:
            raise ValueError("call path() before each Trainer.fit that resumes from memory")
        if not isinstance(strategy, ModelParallelStrategy):
            snapshot = found.read()
            self._epoch = snapshot["rest"]["epoch"]
            return {**snapshot["rest"], "state_dict": snapshot["model"]}
        weights = get_model_state_dict(strategy.model)
        snapshot = found.read({"model": weights, "rest": None, "generators": None})
        self._generators = snapshot["generators"]
        rest: dict[str, Any] = snapshot["rest"]
        self._epoch = rest["epoch"]
        for optimizer, state in zip(strategy.optimizers, rest.pop("optimizer_states"), strict=True):
            set_optimizer_state_dict(strategy.model, optimizer, optim_state_dict=state)
        return rest


def _set_epoch(loader: object, epoch: int) -> None:
    """Tell a loader's samplers which epoch it is, if they shuffle by it."""
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)

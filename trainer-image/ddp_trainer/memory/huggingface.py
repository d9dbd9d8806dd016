"""Keeps the trainings of Hugging Face's `Trainer` in memory.

    from ddp_trainer.memory.huggingface import MemoryCheckpoint

    memory_checkpoint = MemoryCheckpoint(every_steps=10)
    trainer = Trainer(..., callbacks=[memory_checkpoint])
    trainer.train(resume_from_checkpoint=memory_checkpoint.folder() or newest_checkpoint)

It needs plain DDP: with FSDP or DeepSpeed, a rank has only a part of the model.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from transformers import TrainerCallback, TrainerState, TrainingArguments

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.loading import load
from ddp_trainer.memory.saving import save
from ddp_trainer.memory.volume import Volume
from ddp_trainer.settings.environment import Environment


class MemoryCheckpoint(TrainerCallback):  # type: ignore[misc]
    """Saves snapshots in memory, and resumes from them."""

    def __init__(self, *, every_steps: int = 1) -> None:
        """`every_steps`: steps from one snapshot to the next."""
        if every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}: it must be at least 1")
        self._every_steps = every_steps
        self._folder: Path | None = None

    def folder(self) -> str | None:
        """Return a checkpoint folder of the newest snapshot; None if there is none in memory.

        All ranks call it after the creation of the `Trainer`. The folder is temporary, and removed
        after the first step.

        Raises:
            NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
            OSError: there is no room for the folder in the directory for temporary files.
        """
        found = load()
        if found is None:
            return None
        environment = Environment.from_env(os.environ)
        placement = environment.placement
        # A process that dies before its first step leaves the folder to the next one.
        name = f"ddp-memory-{placement.job_uid}-{placement.node_rank}"
        self._folder = Path(tempfile.gettempdir(), name)
        if environment.local_rank == 0:
            _write(self._folder, found[1])
        if dist.is_initialized():
            dist.barrier()
        return str(self._folder)

    def on_train_begin(self, args: TrainingArguments, *_: object, **__: object) -> None:
        """Refuse trainings that split the model between ranks."""
        if Volume.from_env(os.environ) and (args.fsdp or args.deepspeed):
            raise ConfigurationError(
                "MemoryCheckpoint needs plain DDP: remove fsdp and deepspeed from the "
                "TrainingArguments, or save their state with ddp_trainer.memory.save"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, *_: object, **parts: Any
    ) -> None:
        """Save a snapshot if it is time."""
        if self._folder is not None:  # all ranks have read it: they have trained a step together
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if Volume.from_env(os.environ) is None or state.global_step % self._every_steps:
            return
        model = parts["model"]
        generators: list[Any] = [_generators()] * args.world_size
        if dist.is_initialized():
            dist.all_gather_object(generators, generators[0])
        snapshot = {
            "model": getattr(model, "module", model).state_dict(),
            "optimizer": parts["optimizer"].state_dict(),
            "scheduler": parts["lr_scheduler"].state_dict(),
            "generators": generators,
            "state": json.dumps(dataclasses.asdict(state)),
        }
        save(state.global_step, snapshot, replicated=True)


def _generators() -> dict[str, Any]:
    """Return the states of this rank's random number generators, as a `Trainer` saves them."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        is_distributed = dist.is_initialized()
        states["cuda"] = (
            torch.cuda.get_rng_state_all() if is_distributed else torch.cuda.get_rng_state()
        )
    return states


def _write(folder: Path, snapshot: dict[str, Any]) -> None:
    """Write the files of a checkpoint of a `Trainer`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.save(snapshot["model"], folder / "pytorch_model.bin")
    torch.save(snapshot["optimizer"], folder / "optimizer.pt")
    torch.save(snapshot["scheduler"], folder / "scheduler.pt")
    generators = snapshot["generators"]
    for rank, states in enumerate(generators):
        name = f"rng_state_{rank}.pth" if len(generators) > 1 else "rng_state.pth"
        torch.save(states, folder / name)
    (folder / "trainer_state.json").write_text(snapshot["state"])

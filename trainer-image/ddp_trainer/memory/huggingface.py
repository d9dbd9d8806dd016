"""Keeps the trainings of Hugging Face's `Trainer` in memory.

    from ddp_trainer.memory.huggingface import MemoryCheckpoint

    memory_checkpoint = MemoryCheckpoint(every_steps=10)
    trainer = Trainer(..., callbacks=[memory_checkpoint])
    trainer.train(resume_from_checkpoint=memory_checkpoint.folder() or newest_checkpoint)

With plain DDP, the folder is a whole checkpoint of the `Trainer`. With FSDP2, each rank has a
folder with only its position and random generators. The callback loads the rest from memory into
the sharded model, which exists only when the training begins.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import TrainerCallback, TrainerState, TrainingArguments

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory import generators
from ddp_trainer.memory.loading import FoundSnapshot, find
from ddp_trainer.memory.restoration import LEFT_OUT
from ddp_trainer.memory.saving import save
from ddp_trainer.memory.state_tree import is_dtensor
from ddp_trainer.memory.volume import Volume
from ddp_trainer.settings.environment import Environment

_AT_THE_FOLDER = ("generators", "state", "names")
"""Parts of a sharded snapshot that the `Trainer` reads from the folder."""
_AT_THE_BEGIN = ("model", "optimizer", "scheduler")
"""Parts that the callback loads when the training begins."""


class MemoryCheckpoint(TrainerCallback):  # type: ignore[misc]
    """Saves snapshots in memory, and resumes from them."""

    def __init__(self, *, every_steps: int = 1) -> None:
        """`every_steps`: steps from one snapshot to the next."""
        if every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}: it must be at least 1")
        self._every_steps = every_steps
        self._folder: Path | None = None
        self._sharded: FoundSnapshot | None = None
        """The snapshot of a sharded model; a Trainer may begin several times before a step."""

    def folder(self) -> str | None:
        """Return a checkpoint folder of the newest snapshot; None if there is none in memory.

        All ranks call it after the creation of the `Trainer`. The folder is temporary, and removed
        after the first step.

        Raises:
            NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
            OSError: there is no room for the folder in the directory for temporary files.
        """
        found = find()
        if found is None:
            return None
        environment = found.environment
        placement = environment.placement
        # A process that dies before its first step leaves the folder to the next one.
        name = f"ddp-memory-{placement.job_uid}-{placement.node_rank}"
        if found.replicated:
            self._folder = Path(tempfile.gettempdir(), name)
            if environment.local_rank == 0:
                _write(self._folder, found.read())
            if dist.is_initialized():
                dist.barrier()
        else:
            self._sharded = found
            self._folder = Path(tempfile.gettempdir(), f"{name}-{environment.local_rank}")
            into = dict.fromkeys(_AT_THE_FOLDER) | dict.fromkeys(_AT_THE_BEGIN, LEFT_OUT)
            _write_position(self._folder, found.read(into), environment)
        return str(self._folder)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: object, **parts: Any
    ) -> None:
        """Load a sharded snapshot, and refuse a training if its state cannot be saved."""
        if Volume.from_env(os.environ) is None:
            return
        model = parts["model"]
        if args.deepspeed:
            raise ConfigurationError(
                "MemoryCheckpoint does not support deepspeed: remove it from the "
                "TrainingArguments, or save its state with ddp_trainer.memory.save"
            )
        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise ConfigurationError(
                "MemoryCheckpoint does not support version 1 of FSDP: set version to 2 in the "
                "fsdp_config of the TrainingArguments"
            )
        if _is_sharded(model) and any(_is_of_peft(kind) for kind in type(model).__mro__):
            raise ConfigurationError(
                "MemoryCheckpoint does not support PEFT with fsdp: remove fsdp from the "
                "TrainingArguments, or save the state with ddp_trainer.memory.save"
            )
        if self._sharded is not None:
            self._load(self._sharded, state, **parts)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, *_: object, **parts: Any
    ) -> None:
        """Save a snapshot if it is time."""
        if self._folder is not None:  # all ranks have read it: they have trained a step together
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._sharded = None
        if Volume.from_env(os.environ) is None or state.global_step % self._every_steps:
            return
        model = parts["model"]
        snapshot: dict[str, Any] = {
            "optimizer": parts["optimizer"].state_dict(),
            "scheduler": parts["lr_scheduler"].state_dict(),
            "state": json.dumps(dataclasses.asdict(state)),
        }
        own = generators.states()
        if _is_sharded(model):
            weights = model.state_dict()
            snapshot |= {"model": weights, "names": list(weights), "generators": own}
            save(state.global_step, snapshot)
        else:
            of_all: list[Any] = [own] * args.world_size
            if dist.is_initialized():
                dist.all_gather_object(of_all, own)
            weights = getattr(model, "module", model).state_dict()
            snapshot |= {"model": weights, "generators": of_all}
            save(state.global_step, snapshot, replicated=True)

    def _load(self, found: FoundSnapshot, state: TrainerState, **parts: Any) -> None:
        """Load a sharded snapshot; the `Trainer` has taken its position from the folder."""
        if state.global_step != found.step:
            raise ConfigurationError(
                f"the Trainer begins at step {state.global_step}, but MemoryCheckpoint.folder() "
                f"is of step {found.step}: pass the folder as resume_from_checkpoint"
            )
        into = {"model": parts["model"].state_dict(), "optimizer": parts["optimizer"].state_dict()}
        saved = found.read({**dict.fromkeys(_AT_THE_FOLDER, LEFT_OUT), "scheduler": None, **into})
        parts["optimizer"].load_state_dict(saved["optimizer"])
        parts["lr_scheduler"].load_state_dict(saved["scheduler"])


def _is_sharded(model: torch.nn.Module) -> bool:
    return any(is_dtensor(parameter) for parameter in model.parameters())


def _is_of_peft(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "peft"


def _write(folder: Path, snapshot: dict[str, Any]) -> None:
    """Write the files of a checkpoint of a `Trainer`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.save(snapshot["model"], folder / "pytorch_model.bin")
    torch.save(snapshot["optimizer"], folder / "optimizer.pt")
    torch.save(snapshot["scheduler"], folder / "scheduler.pt")
    of_all = snapshot["generators"]
    for rank, states in enumerate(of_all):
        torch.save(states, folder / _of_rank(rank, len(of_all)))
    (folder / "trainer_state.json").write_text(snapshot["state"])


def _write_position(folder: Path, snapshot: dict[str, Any], environment: Environment) -> None:
    """Write a checkpoint with position and generators for the `Trainer`, but no weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # A Trainer insists on weights: it finds all their names in a file that has none of them.
    file = "pytorch_model-00001-of-00001.bin"
    torch.save({}, folder / file)
    index = {"metadata": {}, "weight_map": dict.fromkeys(snapshot["names"], file)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    size = environment.placement.world_size
    torch.save(snapshot["generators"], folder / _of_rank(environment.rank, size))
    (folder / "trainer_state.json").write_text(snapshot["state"])


def _of_rank(rank: int, world_size: int) -> str:
    return f"rng_state_{rank}.pth" if world_size > 1 else "rng_state.pth"

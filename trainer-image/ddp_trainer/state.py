"""All that a run must remember to go on as if it had never stopped.

The serialised state is what checkpoints hold and what rank 0 sends to the others, so resuming
follows one path whether a rank sees the checkpoint directory or not.
"""

from __future__ import annotations

import io
import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer.world import World


@dataclass(kw_only=True)
class Position:
    """How far a run has come: always at a boundary between two optimizer steps."""

    step: int = 0
    """Optimizer steps completed since the beginning of training."""
    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all ranks together have consumed, padding not counted."""

    def advance(self, samples: int, *, epoch_length: int) -> None:
        """One more step, on `samples` samples over all ranks, padding included."""
        self.step += 1
        self.samples = min(self.samples + samples, epoch_length)

    def next_epoch(self) -> None:
        """The epoch is complete."""
        self.epoch += 1
        self.samples = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """The parts of a training run that change from step to step."""

    model: nn.Module
    """The model itself, not its DDP wrapper: a checkpoint is of use without DDP too."""
    optimizer: Optimizer
    scheduler: LRScheduler
    position: Position

    def serialise(self, world: World) -> bytes | None:
        """The whole state on rank 0, None elsewhere; every rank must call this at the same step."""
        random_states = world.gather(_to_bytes(_random_state()))
        if world.rank != 0:
            return None
        return _to_bytes(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "position": asdict(self.position),
                "random": [_from_bytes(state) for state in random_states],
            }
        )

    def restore(self, data: bytes, *, rank: int) -> None:
        """Take over a serialised state; `rank` picks this rank's random numbers.

        A rank that did not exist when the state was saved keeps the generators it was seeded with.
        """
        state = _from_bytes(data)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        for name, value in state["position"].items():
            setattr(self.position, name, value)
        if rank < len(state["random"]):
            _restore_random_state(state["random"][rank])


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on the GPU too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _random_state() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if _uses_cuda() else None,
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and _uses_cuda():
        torch.cuda.set_rng_state(state["cuda"])


def _uses_cuda() -> bool:
    # Not is_available: asking a GPU that this rank does not train on would take memory there.
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Any:
    # weights_only: a checkpoint is data and must not be able to run code.
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)

"""All that a run must remember to go on as if it had never stopped.

The serialised state is what checkpoints hold and what a rank that lags behind or starts anew takes
from another one, so resuming follows one path wherever the state comes from.

Random numbers are no part of it: every rank seeds its generators anew for every step, once for the
samples that it draws and once for the model, from the run's seed, its rank and the step. A rank
that takes the place of a dead one therefore draws the same numbers as that one would have, although
nobody else knew its generators.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ddp_trainer.collectives.compression import Memory, PowerSGD
from ddp_trainer.run.optimization import Optimization
from ddp_trainer.run.schedule import Schedule
from ddp_trainer.system import buffers
from ddp_trainer.system.buffers import size_of

_ONLY_WITH_OPTIONS = ("scaler", "compression")
"""Parts that a run may be saved without and go on with."""
_OVERHEAD_BYTES = 1 << 20
"""What a serialised state takes beside its tensors, of which there may be a thousand."""


class Part(Protocol):
    """What can tell its state, and take over one."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take over what `state_dict` returned."""


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

    def before_evaluation(self, *, epoch_length: int) -> Position:
        """The same place, but the end of an epoch where it is the beginning of the next one.

        Whoever goes on from there evaluates, again if need be.
        """
        if self.epoch == 0 or self.samples > 0:
            return self
        return Position(step=self.step, epoch=self.epoch - 1, samples=epoch_length)

    def next_epoch(self) -> None:
        """The epoch is complete."""
        self.epoch += 1
        self.samples = 0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What decides which samples come in which order, and which random numbers are drawn."""

    seed: int
    samples: int
    """In the training set."""

    def __str__(self) -> str:
        return f"--seed {self.seed} and {self.samples} training samples"


class Run:
    """What changes from step to step, part by part; it outlives broken groups."""

    def __init__(self, *, order: Order) -> None:
        self.order = order
        self.position = Position()
        self.is_fresh = True
        """Whether this holds nothing yet that another rank could go on from."""

    def parts(self) -> Mapping[str, Part]:
        """All that has a state of its own, by its name in the serialised state."""
        raise NotImplementedError

    def progress(self) -> list[int]:
        """How far this has come, to be compared with how far other ranks have."""
        return [self.position.step]

    def state(self) -> dict[str, Any]:
        """The whole state, in the very tensors that the next step changes.

        The same for everybody who has completed the same step, evaluated or not.
        """
        parts = {name: part.state_dict() for name, part in self.parts().items()}
        position = self.position.before_evaluation(epoch_length=self.order.samples)
        return {**parts, "position": asdict(position), "order": asdict(self.order)}

    def serialise(self) -> memoryview:
        """The whole state as `restore` reads it, for ranks that go on together from here."""
        return self._serialised({})

    def _serialised(self, more: Mapping[str, Any]) -> memoryview:
        state = self.state() | {"position": asdict(self.position), **more}
        return buffers.save(state, capacity=size_of(state) + _OVERHEAD_BYTES)

    def restore(self, data: bytes | memoryview) -> None:
        """Take over a serialised state, in the same tensors that the model has now.

        Raises:
            ValueError: it is of a run that cannot go on as this one.
            RuntimeError, KeyError: it is of another model or optimizer.
        """
        state: Any = buffers.load(data)
        self.check(state)
        self.take_in(state)

    def take_in(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was checked."""
        for name, part in self.parts().items():
            if name in state or name not in _ONLY_WITH_OPTIONS:
                part.load_state_dict(state[name])
        for name, value in state["position"].items():
            setattr(self.position, name, value)

    def check(self, state: Mapping[str, Any]) -> None:
        """See that a state is of a run like this.

        Raises:
            ValueError: it is of another order of samples, in which the position means nothing.
        """
        order = Order(**state["order"])
        if order != self.order:
            raise ValueError(f"it is of a run with {order}, this one has {self.order}")

    def remarks(self) -> Iterator[str]:
        """What people should know of the state that was restored last."""
        yield from ()


class ModelRun(Run):
    """The run of one model by the bundled loop."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimization: Optimization,
        order: Order,
        compression: PowerSGD | None = None,
    ) -> None:
        """`model` is the model itself, not its DDP wrapper, of which each group has its own."""
        super().__init__(order=order)
        self.model = model
        self.optimization = optimization
        self.compression = compression

    def complete_step(self, samples: int) -> None:
        """Apply the averaged gradients of `samples` samples over all ranks, padding included.

        The gradients have come. Nothing in here waits for another rank: a run is at a boundary
        between steps whenever a collective fails.
        """
        self.optimization.step(self.position)
        self.position.advance(samples, epoch_length=self.order.samples)

    @contextmanager
    def attempt(self, *, rehearsal: bool = False) -> Iterator[None]:
        """Take back what a forward pass does to the model's buffers, should its step fail.

        The same holds for what the backward pass does to the memory of a compression. A `rehearsal`
        leaves no trace even when it succeeds.
        """
        before = [buffer.clone() for buffer in self.model.buffers()]
        memory = self.compression.memory() if self.compression is not None else None
        counts = False
        try:
            yield
            counts = not rehearsal
        finally:
            if not counts:
                self._take_back(before, memory)

    def _take_back(self, buffers: Sequence[Tensor], memory: Memory | None) -> None:
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.optimization.optimizer.zero_grad()
        if self.compression is not None and memory is not None:
            self.compression.restore(memory)

    def parts(self) -> Mapping[str, Part]:
        """All that has a state of its own, by its name in the serialised state."""
        parts: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimization.optimizer,
            "scheduler": self.optimization.scheduler,
            "scaler": self.optimization.scaler,
            "compression": self.compression,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def check(self, state: Mapping[str, Any]) -> None:
        """See that a state is of a run like this.

        Raises:
            ValueError: it is of another order of samples, or of another kind of scheduler.
        """
        super().check(state)
        if self.optimization.has_other_scheduler(state["scheduler"]):
            raise ValueError("it is of a run with another learning rate scheduler")

    def remarks(self) -> Iterator[str]:
        """What people should know of the state that was restored last."""
        scheduler = self.optimization.scheduler
        if isinstance(scheduler, Schedule) and scheduler.counted_steps:
            yield (
                "it is of a trainer that chose the learning rate by steps: it goes on by the share "
                "of samples that is done, with a warm-up as of this number of ranks"
            )


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on the GPU too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # Not torch.manual_seed: that formats a stack trace for every kind of device that is not there,
    # which takes longer than a step of a small model.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


def seed_step(seed: int, *, rank: int, step: int, purpose: str = "model") -> None:
    """Seed the generators for one purpose of one rank's part of one step, unlike any other.

    Each purpose has numbers of its own, so that what one draws, or draws once more when a step is
    rehearsed, shifts nothing for the others.
    """
    name = f"{seed}/{rank}/{step}" if purpose == "model" else f"{seed}/{rank}/{step}/{purpose}"
    digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
    seed_everything(int.from_bytes(digest))

"""What a run consists of, by name: whatever has a state of its own."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Position
from ddp_trainer.run.savable import check

_RESERVED = frozenset({"position", "order", "answers", "bookmarks", "epoch", "score"})
"""Names of what is no part."""


class Part(Protocol):
    """What can tell its state, and take over one."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take over what `state_dict` returned."""


@runtime_checkable
class PositionalSchedule(Protocol):
    """Sets learning rates by how far the run has come; torch's own count their steps instead."""

    def set_rates(self, position: Position) -> None:
        """Set those of the step that begins at `position`."""

    def take_steps_of(self, ranks: int) -> None:
        """From here on so many ranks train."""


class Parts:
    """All of them, and those of each kind."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """See that each can be remembered.

        Raises:
            ConfigurationError: one cannot.
        """
        self.by_name = {name: _checked(name, part) for name, part in parts.items()}
        self.models = self._of_kind(nn.Module)
        if not self.models:
            raise ConfigurationError("join() got no model: name it, as in join(model=model, ...)")
        self.optimizers: list[Optimizer] = self._of_kind(Optimizer)
        self.plateaus: list[ReduceLROnPlateau] = self._of_kind(ReduceLROnPlateau)
        self.schedulers: list[LRScheduler] = [
            each for each in self._of_kind(LRScheduler) if each not in self.plateaus
        ]
        self.schedules: list[PositionalSchedule] = self._of_kind(PositionalSchedule)
        self.scaler: torch.amp.GradScaler | None = self._one("scaler", torch.amp.GradScaler)

    def expect(self, state: Mapping[str, Any]) -> None:
        """See that a state is of parts like these.

        Raises:
            ValueError: it is not.
        """
        # With or without one a run may go on.
        optional = {"scaler"} - set(self.by_name)
        for name, part in self.by_name.items():
            if isinstance(part, torch.amp.GradScaler):
                optional.add(name)
        found, wanted = set(state) - _RESERVED, set(self.by_name)
        if found - optional != wanted - optional:
            raise ValueError(f"it holds {_names(found)}, and this run has {_names(wanted)}")
        for name, part in self.by_name.items():
            if isinstance(part, LRScheduler) and "last_epoch" not in state[name]:
                raise ValueError("it is of a run with another learning rate scheduler")

    def _of_kind(self, kind: type[Any]) -> list[Any]:
        return [part for part in self.by_name.values() if isinstance(part, kind)]

    def _one(self, what: str, kind: type[Any]) -> Any:
        found = self._of_kind(kind)
        if len(found) > 1:
            raise ConfigurationError(f"join() got several parts of kind {what}: give one")
        return found[0] if found else None


def move(model: nn.Module, device: torch.device, *, name: str) -> None:
    """Move a model to a device, unless all of it is there: quantised ones refuse to be moved.

    Raises:
        ConfigurationError: it is elsewhere, and cannot be moved.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    if all(_is_on(tensor.device, device) for tensor in tensors):
        return
    try:
        model.to(device)
    except Exception as error:
        raise ConfigurationError(
            f"join() cannot move {name} to {device} ({error}): place it there before, for example "
            'with device_map={"": int(os.environ["LOCAL_RANK"])} for a quantised model'
        ) from error


def check_whole(*models: nn.Module) -> None:
    """See that each rank has all of these models, so that it can give them to another one.

    Raises:
        ConfigurationError: one is sharded, or may be.
    """
    for name, parameter in itertools.chain(*(model.named_parameters() for model in models)):
        if hasattr(parameter, "device_mesh"):
            raise ConfigurationError(
                f"{name} is a DTensor, and join() cannot restore the part that a lost rank had of "
                "it: leave out fully_shard() and parallelize_module(), or train without join()"
            )


def _is_on(found: torch.device, wanted: torch.device) -> bool:
    return found.type == wanted.type and (wanted.index is None or found.index == wanted.index)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _names(parts: set[str]) -> str:
    return ", ".join(sorted(parts))


def _checked(name: str, part: Any) -> Part:
    if name in _RESERVED:
        raise ConfigurationError(f"join() uses the name {name} itself: call it something else")
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(part).__mro__):
        raise ConfigurationError(
            f"{name} is a ZeroRedundancyOptimizer: each rank has a part of its state, which would "
            "be lost with the rank; give join() the optimizer that it is made of"
        )
    if isinstance(part, Optimizer) and _needs_closure(part):
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}, which computes the loss several times within a "
            "step, and job.step() takes a step with the gradients that there are: choose another, "
            "such as Adam"
        )
    methods: list[Callable[..., Any] | None] = [
        getattr(part, method, None) for method in ("state_dict", "load_state_dict")
    ]
    if not all(callable(method) for method in methods):
        raise ConfigurationError(
            f"{name} is a {type(part).__name__} and cannot be remembered: give join() objects with "
            "state_dict and load_state_dict, such as models and optimizers"
        )
    checked: Part = part
    check(checked.state_dict(), of=name)
    return checked

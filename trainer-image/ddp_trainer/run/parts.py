"""The stateful parts of a run, by name."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Position
from ddp_trainer.run.savable import check

_RESERVED = frozenset(
    {"position", "order", "answers", "bookmarks", "epoch", "score", "trained_seconds", "changing"}
)
"""Names in a state that are no parts."""


class Part(Protocol):
    """An object that can save and load its state."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Load a state that `state_dict` returned."""


@runtime_checkable
class PositionalSchedule(Protocol):
    """Sets learning rates by the position of the run; torch's schedulers count steps instead."""

    def set_rates(self, position: Position) -> None:
        """Set the rates of the step that begins at `position`."""

    def take_steps_of(self, ranks: int) -> None:
        """Note that this number of ranks trains from now on."""


class Parts:
    """All parts of a run, and those of each kind."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """Check that the state of each part can be saved.

        Raises:
            ConfigurationError: that of one part cannot.
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
        """Check that a state belongs to parts like these.

        Raises:
            ValueError: it does not.
        """
        # A run may continue with or without a scaler.
        optional = {"scaler"} - set(self.by_name)
        for name, part in self.by_name.items():
            if isinstance(part, torch.amp.GradScaler):
                optional.add(name)
        found, wanted = set(state) - _RESERVED, set(self.by_name)
        if found - optional != wanted - optional:
            raise ValueError(f"it contains {_names(found)}, but this run has {_names(wanted)}")
        for name, part in self.by_name.items():
            if isinstance(part, LRScheduler) and "last_epoch" not in state[name]:
                raise ValueError("it belongs to a run with another learning rate scheduler")

    def _of_kind(self, kind: type[Any]) -> list[Any]:
        return [part for part in self.by_name.values() if isinstance(part, kind)]

    def _one(self, what: str, kind: type[Any]) -> Any:
        found = self._of_kind(kind)
        if len(found) > 1:
            raise ConfigurationError(f"join() got more than one {what}: pass only one")
        return found[0] if found else None


def stepped(*optimizers: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of some optimizers."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def move(model: nn.Module, device: torch.device, *, name: str) -> None:
    """Move a model to a device, unless it is there: quantised models cannot be moved.

    Raises:
        ConfigurationError: it is on another device and cannot be moved.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    if all(_is_on(tensor.device, device) for tensor in tensors):
        return
    try:
        model.to(device)
    except Exception as error:
        raise ConfigurationError(
            f"join() cannot move {name} to {device} ({error}): load it there, for example "
            'with device_map={"": int(os.environ["LOCAL_RANK"])} for a quantised model'
        ) from error


def check_whole(*models: nn.Module) -> None:
    """Check that each rank holds these models completely, so that it can send them to another.

    Raises:
        ConfigurationError: a model has DTensor parameters, which may be sharded.
    """
    for name, parameter in itertools.chain(*(model.named_parameters() for model in models)):
        if hasattr(parameter, "device_mesh"):
            raise ConfigurationError(
                f"{name} is a DTensor, and join() cannot restore a lost rank's part of it: call "
                "fully_shard(model, mesh=ddp_trainer.device_mesh()) before join(), remove "
                "parallelize_module(), or train without join()"
            )


def _is_on(found: torch.device, wanted: torch.device) -> bool:
    return found.type == wanted.type and (wanted.index is None or found.index == wanted.index)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _steps(part: Any) -> bool:
    """Return whether a part works like an optimizer."""
    return all(callable(getattr(part, name, None)) for name in ("step", "zero_grad"))


def _names(parts: set[str]) -> str:
    return ", ".join(sorted(parts))


def _checked(name: str, part: Any) -> Part:
    if name in _RESERVED:
        raise ConfigurationError(f"join() uses the name {name} itself: choose another name")
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(part).__mro__):
        raise ConfigurationError(
            f"{name} is a ZeroRedundancyOptimizer: a lost rank's part of its state would be lost. "
            "Pass the optimizer that it wraps to join()"
        )
    if not isinstance(part, Optimizer | nn.Module) and _steps(part):
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}, which is no torch.optim.Optimizer, so job.step() "
            "would never step it: pass the optimizer in it, and its rates as a scheduler"
        )
    if isinstance(part, Optimizer) and _needs_closure(part):
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}, which computes the loss several times in a step, "
            "but job.step() uses existing gradients: choose another, such as Adam"
        )
    methods: list[Callable[..., Any] | None] = [
        getattr(part, method, None) for method in ("state_dict", "load_state_dict")
    ]
    if not all(callable(method) for method in methods):
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}, and its state cannot be saved: pass join() "
            "objects with state_dict and load_state_dict, such as models and optimizers"
        )
    checked: Part = part
    check(checked.state_dict(), of=name)
    return checked

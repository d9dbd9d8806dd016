"""A run whose parts are a user's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.run import Order, Part, Run

_RESERVED = frozenset({"position", "order", "answers"})


class UserRun(Run):
    """What a script has named to `join`: all that a step changes, and what else it remembers."""

    def __init__(self, parts: Mapping[str, Any], *, seed: int, device: torch.device) -> None:
        """Models move to the device.

        Raises:
            ConfigurationError: a part cannot be remembered.
        """
        super().__init__(order=Order(seed=seed, samples=0))
        self._parts = {name: _checked(name, part) for name, part in parts.items()}
        self.models = [part for part in parts.values() if isinstance(part, nn.Module)]
        if not self.models:
            raise ConfigurationError("join() got no model: name it, as in join(model=model, ...)")
        for model in self.models:
            model.to(device)
        self.optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
        self.answers: dict[tuple[int, int], list[list[float]]] = {}
        """What `Job.sum` has returned, by step and epoch of the script when it asked.

        Since the last step. A rank may be an epoch further than one that still waits for an answer.
        """
        self._schedulers = [part for part in parts.values() if isinstance(part, LRScheduler)]
        scalers = [part for part in parts.values() if isinstance(part, torch.amp.GradScaler)]
        if len(scalers) > 1:
            raise ConfigurationError("join() got several gradient scalers: give one")
        self._scaler = scalers[0] if scalers else None
        self._may_step = False
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self._expect_gate)

    def parts(self) -> Mapping[str, Part]:
        """All that has a state of its own, by the name that the script gave it."""
        return self._parts

    def progress(self) -> list[int]:
        """How far this has come: what was answered after a step counts too."""
        place = self.position.step, self.position.epoch
        return [*place, len(self.answers.get(place, []))]

    def serialise(self) -> memoryview:
        """The whole state as `restore` reads it, for ranks that go on together from here."""
        return self._serialised({"answers": list(self.answers.items())})

    def take_in(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a checkpoint is of a step, after which nothing was answered yet."""
        super().take_in(state)
        self.answers = {tuple(place): values for place, values in state.get("answers", [])}

    def check(self, state: Mapping[str, Any]) -> None:
        """See that a state is of a run like this.

        Raises:
            ValueError: it has other parts, or another seed.
        """
        found = set(state) - _RESERVED
        if found != set(self._parts):
            raise ValueError(
                f"it holds {', '.join(sorted(found))}, and join() was given "
                f"{', '.join(sorted(self._parts))}"
            )
        if state["order"]["seed"] != self.order.seed:
            raise ValueError(f"it is of a run with seed {state['order']['seed']}")
        self.order = Order(**state["order"])

    def choose_samples(self, samples: int) -> None:
        """The training set has so many.

        Raises:
            ConfigurationError: the run is in the midst of another one, in which positions mean
                something else.
        """
        if self.order.samples not in (0, samples):
            raise ConfigurationError(
                f"the training set has {samples} samples, and had {self.order.samples} when this "
                "run began: choose another checkpoint directory to begin anew"
            )
        self.order = Order(seed=self.order.seed, samples=samples)

    def buffers(self) -> Iterator[Tensor]:
        """Those of all models."""
        for model in self.models:
            yield from model.buffers()

    def apply(self) -> None:
        """Take a step with the gradients that are there; waits for no other rank."""
        self._may_step = True
        try:
            for optimizer in self.optimizers:
                if self._scaler is not None:
                    self._scaler.step(optimizer)
                else:
                    optimizer.step()
        finally:
            self._may_step = False
        if self._scaler is not None:
            self._scaler.update()
        for scheduler in self._schedulers:
            scheduler.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def take_back(self, buffers: list[Tensor]) -> None:
        """Undo what the passes of a step have left that is not taken."""
        for buffer, value in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(value)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self._scaler is not None:  # or it would think that gradients are unscaled already
            self._scaler._per_optimizer_states.clear()

    def _expect_gate(self, *_: object) -> None:
        if not self._may_step:
            raise RuntimeError(
                "optimizer.step() was called: call job.step() instead, which does it when the "
                "gradients of all ranks are known to have come"
            )


def _checked(name: str, part: Any) -> Part:
    if name in _RESERVED:
        raise ConfigurationError(f"join() uses the name {name} itself: call it something else")
    if isinstance(part, ReduceLROnPlateau):
        raise ConfigurationError(
            f"{name} is a ReduceLROnPlateau, which wants a score at each step: choose a scheduler "
            "that counts steps"
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
    return checked

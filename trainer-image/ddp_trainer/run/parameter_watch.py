"""Finds parameters that something else than an optimizer changes within a step.

A momentum encoder, for example, is averaged in the forward pass. Such parameters must be copied
before the passes of a step, or the step cannot be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from ddp_trainer.run.fingerprint import sum_of_bits

_READ_STEPS = 3
"""Steps in which all values are read: an average may begin as what it averages."""


class ParameterWatch:
    """Compares the parameters of some models before and after the passes of a step.

    torch counts the changes of a tensor, but not those through `.data`. So the first comparisons
    read all values. What changes through `.data` for the first time in a later step is missed.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        # Sharded models, whose parameters come and go in a pass, are restored as a whole.
        self._models = [model for model in models if not _is_sharded(model)]
        self._watched: list[_Known] | None = None
        self._to_read = _READ_STEPS
        self.changing: list[Tensor] = []
        """Parameters that have changed within a step, and the frozen ones beside frozen ones."""

    def begin(self) -> None:
        """Note the parameters before a step's passes."""
        if self._watched is None:
            self._watched = [
                _Known(name, parameter, number)
                for number, model in enumerate(self._models)
                for name, parameter in model.named_parameters()
            ]
        for each in self._watched:
            each.note(reads=self._to_read > 0)

    def end(self) -> list[str]:
        """Compare, before an optimizer steps; return the names of those that changed first now."""
        watched = self._watched or []
        changed = [each for each in watched if each.has_changed]
        self._to_read = max(self._to_read - 1, 0)
        if not changed:
            return []
        # Those of one average change together, but not each by a bit that is seen in each step.
        averages = {each.model for each in changed if not each.parameter.requires_grad}
        names = [each.name for each in changed]
        kept = []
        for each in watched:
            is_average = each.model in averages and not each.parameter.requires_grad
            if each in changed or is_average:
                self.changing.append(each.parameter)
            else:
                kept.append(each)
        self._watched = kept
        return names


class _Known:
    """A parameter, as it was before the passes."""

    def __init__(self, name: str, parameter: Tensor, model: int) -> None:
        self.name, self.parameter, self.model = name, parameter, model
        self._place: tuple[int, int] = (0, 0)
        self._bits: int | None = None

    def note(self, *, reads: bool) -> None:
        """Remember its state; `reads`: its values, too."""
        self._place = _place(self.parameter)
        self._bits = sum_of_bits([self.parameter]) if reads else None

    @property
    def has_changed(self) -> bool:
        """Return whether its state is another one."""
        if self._place != _place(self.parameter):
            return True
        return self._bits is not None and self._bits != sum_of_bits([self.parameter])


def _is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _place(parameter: Tensor) -> tuple[int, int]:
    version = 0 if parameter.is_inference() else parameter._version
    return version, parameter.data_ptr()

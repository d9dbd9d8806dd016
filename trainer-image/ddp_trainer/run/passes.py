"""Finds parameters that something else than an optimizer changes within a step.

A momentum encoder, for example, is averaged in the forward pass. Such parameters must be copied
before the passes of a step, or the step cannot be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.fingerprint import sum_of_bits

Name = tuple[int, str]
"""Number of a model, and the name of its parameter."""
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
        self._at_start: list[tuple[str, Tensor, int]] = []
        """What the script must not change before its first step: names, parameters, and bits."""
        self.changing: list[Tensor] = []
        """Parameters that have changed within a step, and the frozen ones beside frozen ones."""
        self._changing: set[Name] = set()

    def names(self) -> list[Name]:
        """Return the names of `changing`, for a process that has not seen them change."""
        return sorted(self._changing)

    def expect(self, names: Iterable[Name]) -> None:
        """Copy these parameters from the first step on: other processes have seen them change."""
        if self._watched is None:
            self._changing = set(names)

    def _all(self) -> Iterator[_Known]:
        for number, model in enumerate(self._models):
            for name, parameter in model.named_parameters():
                yield _Known(name, parameter, number)

    def expect_no_change(self) -> None:
        """Note the parameters with which this process begins, unless it has taken a step."""
        if self._watched is None:
            self._at_start = [
                (each.name, each.parameter, sum_of_bits([each.parameter])) for each in self._all()
            ]

    def begin(self) -> None:
        """Note the parameters before a step's passes.

        Raises:
            ConfigurationError: the script has changed some since the process began.
        """
        if self._watched is None:
            for name, parameter, bits in self._at_start:
                if sum_of_bits([parameter]) != bits:
                    raise ConfigurationError(
                        f"{name} was changed after join() and before the first step: do that "
                        "before join(), or a job that resumes would lose what it has trained"
                    )
            self._at_start.clear()
            known = list(self._all())
            self._watched = [each for each in known if each.key not in self._changing]
            self.changing = [each.parameter for each in known if each.key in self._changing]
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
                self._changing.add(each.key)
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

    @property
    def key(self) -> Name:
        """Its name in the run."""
        return self.model, self.name

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

"""Undoes what the passes of a step change beside gradients, so that the step can be tried again.

These are buffers, and parameters that something else than an optimizer changes: a momentum encoder,
for example, is averaged in the forward pass. Such parameters must be copied before the passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter

from torch import Tensor, nn

from ddp_trainer.exit_codes import ConfigurationError, NewProcessError
from ddp_trainer.run.buffers import Copies, Slot, slots
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.parts import Parts
from ddp_trainer.run.updates import Updates

Name = tuple[int, str]
"""Number of a model, and the name of its parameter."""
Places = list[tuple[int, int]]
_version, _children, _buffers = map(attrgetter, ("_version", "_modules", "_buffers"))
_READ_STEPS = 3
"""Steps in which all values are read: an average may begin as what it averages."""


class Passes:
    """The forward and backward passes of one step after the other."""

    def __init__(self, parts: Parts, updates: Updates) -> None:
        self._optimizers = parts.optimizers
        self._updates = updates
        self.watch = ParameterWatch(parts.models)
        self._modules = Modules(parts.models)
        self._before, self._copies = Copies(), Copies()
        self._has_copied = False
        """False: there was nothing to copy in any step so far."""

    def before(self) -> Copies:
        """Copy what passes change, so that `take_back` can undo it; valid until the next call."""
        self.watch.begin()
        places = self._modules.places()
        if places or self.watch.changing or self._has_copied:
            self._has_copied = True
            self._before.take(places, self.watch.changing)
        return self._before

    def end(self, *, are_undone: bool = False) -> None:
        """Note which parameters the passes changed, before an optimizer does.

        `are_undone`: `take_back` follows.

        Raises:
            NewProcessError: it cannot, because some changed that had never changed before.
        """
        changed = self.watch.end()
        if changed and are_undone:
            raise NewProcessError(
                f"the forward pass changed {', '.join(changed[:3])} for the first time in the step "
                "in which a rank was lost, and the earlier values are not known: this process "
                "starts again"
            )

    def copy_buffers(self) -> Copies:
        """Copy the present buffers; the copies are valid until the next call."""
        self._copies.take(list(slots(self._modules.all)))
        return self._copies

    def set_buffers(self, copies: Copies) -> None:
        """Restore what was copied; no backward pass may need it any longer."""
        copies.put_back(slots(self._modules.all))

    def take_back(self, before: Copies, *, in_turn: bool = False) -> None:
        """Undo the changes of a step's passes, because the step is not taken.

        `in_turn`: the script may still use what they computed.
        """
        if in_turn:
            before.put_others(slots(self._modules.all))
        else:
            self.set_buffers(before)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self.forget_unscaling()

    def forget_unscaling(self) -> None:
        """Forget that the script unscaled gradients: the step uses other ones."""
        self._updates.forget_unscaling()


class Modules:
    """The modules of some models, each once, and the places of their buffers.

    A walk through all modules takes longer than a small step's other work here, so it is repeated
    only if a module has other children than before.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self.all: Collection[nn.Module] = []
        """The modules at the last call of `places`."""
        self._children: list[dict[str, nn.Module | None]] = []
        """Children of each module then."""
        self._names: list[list[str]] = []
        """Names of each module's buffers then."""
        self._places: Sequence[Slot] = []

    def places(self) -> Sequence[Slot]:
        """Return the places of all buffers, as they are now."""
        # No hook on registration: torch has none for what is removed, or inserted in a ModuleList.
        children, names = [*map(_children, self.all)], [*map(list, map(_buffers, self.all))]
        if self.all and children == self._children and names == self._names:
            return self._places
        self.all = {module: None for model in self._models for module in model.modules()}
        self._children = [dict(module._modules) for module in self.all]
        self._names = [list(module._buffers) for module in self.all]
        self._places = list(slots(self.all))
        return self._places


class ParameterWatch:
    """Compares the parameters of some models before and after the passes of a step.

    torch counts the changes of a tensor, but not those through `.data`. So the first comparisons
    read all values. What changes through `.data` for the first time in a later step is missed.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        # Sharded models, whose parameters come and go in a pass, are restored as a whole.
        self._models = [model for model in models if not _is_sharded(model)]
        self._watched: list[_Known] | None = None
        self._parameters: list[nn.Parameter] = []
        """Those of `_watched`."""
        self._places: Places = []
        """Their versions and addresses before the passes."""
        self._has_read = False
        """True: their values were read too."""
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
            self._parameters = [each.parameter for each in self._watched]
        self._places = _places(self._parameters)
        if self._to_read > 0 or self._has_read:
            self._has_read = self._to_read > 0
            for each in self._watched:
                each.bits = sum_of_bits([each.parameter]) if self._has_read else None

    def end(self) -> list[str]:
        """Compare, before an optimizer steps; return the names of those that changed first now."""
        places = _places(self._parameters)
        self._to_read = max(self._to_read - 1, 0)
        if not self._has_read and places == self._places:
            return []
        watched = self._watched or []
        both = zip(watched, self._places, places, strict=True)
        changed = [each for each, before, now in both if before != now or each.differs]
        if not changed:
            return []
        # Those of one average change together, but not each by a bit that is seen in each step.
        averages = {each.model for each in changed if not each.parameter.requires_grad}
        names = [each.name for each in changed]
        kept, kept_places = [], []
        for each, place in zip(watched, self._places, strict=True):
            is_average = each.model in averages and not each.parameter.requires_grad
            if each in changed or is_average:
                self.changing.append(each.parameter)
                self._changing.add(each.key)
            else:
                kept.append(each)
                kept_places.append(place)
        self._watched, self._places = kept, kept_places
        self._parameters = [each.parameter for each in kept]
        return names


class _Known:
    """A parameter with its name in a model."""

    def __init__(self, name: str, parameter: nn.Parameter, model: int) -> None:
        self.name, self.parameter, self.model = name, parameter, model
        self.bits: int | None = None
        """Of its values before the passes; None: they were not read."""

    @property
    def key(self) -> Name:
        """Its name in the run."""
        return self.model, self.name

    @property
    def differs(self) -> bool:
        """Return whether its values, read before, are others now."""
        return self.bits is not None and self.bits != sum_of_bits([self.parameter])


def _is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _places(parameters: Sequence[Tensor]) -> Places:
    """Return versions and addresses, without a line of Python for each parameter."""
    addresses = map(Tensor.data_ptr, parameters)
    try:
        return [*zip(map(_version, parameters), addresses, strict=True)]
    except RuntimeError:  # inference tensors have no version
        return [(0 if p.is_inference() else p._version, p.data_ptr()) for p in parameters]

"""Refuses a training in which some parameters would silently not be trained, or by one rank alone.

Only what an optimizer steps is trained, and only gradients of wrapped or sharded models are
averaged over the ranks. The check does not depend on the number of ranks, so that a first try with
one process finds the same mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.parts import Parts, stepped


def check_ownership(parts: Parts, averaged: Sequence[nn.Module]) -> None:
    """Check that optimizers step exactly the parameters whose gradients are averaged.

    `averaged`: the models that are wrapped or sharded.

    Raises:
        ConfigurationError: they do not; the message names the first such parameter.
    """
    if not parts.optimizers:
        raise ConfigurationError(
            "join() got no optimizer, so nothing would be trained: name it, as in "
            "join(model=model, optimizer=optimizer, ...)"
        )
    names = dict(_names(parts))
    trained = {each for model in averaged for each in model.parameters() if each.requires_grad}
    for optimizer in parts.optimizers:
        for parameter in stepped(optimizer):
            if parameter.requires_grad and parameter not in trained:
                raise _not_averaged(parameter, names.get(parameter), type(optimizer).__name__)
    forgotten = trained - {*stepped(*parts.optimizers)}
    for parameter in sorted(forgotten, key=lambda each: names.get(each, "")):
        raise ConfigurationError(
            f"no optimizer of join() has {names.get(parameter)}, so it would not be trained: give "
            "join() its optimizer, created after the model's last change, or freeze the parameter"
        )


def trained_by_name(parts: Parts) -> Mapping[str, Tensor]:
    """Return what the optimizers of a run train, by name."""
    trained = {each for each in stepped(*parts.optimizers) if each.requires_grad}
    return {name: parameter for parameter, name in _names(parts) if parameter in trained}


def _not_averaged(parameter: Tensor, name: str | None, optimizer: str) -> ConfigurationError:
    if name is None:
        return ConfigurationError(
            f"the {optimizer} has a parameter of shape {[*parameter.shape]}, which no model of "
            "join() has: make it a part of a model, or create the optimizer after the last change "
            "of the model, such as fully_shard()"
        )
    return ConfigurationError(
        f"the {optimizer} trains {name}, but each rank would use its own gradients: wrap the "
        f"model, as in net = job.wrap({name.partition('.')[0]}), and call net in the loop"
    )


def _names(parts: Parts) -> Iterator[tuple[Tensor, str]]:
    for part, model in parts.by_name.items():
        if isinstance(model, nn.Module):
            yield from ((each, f"{part}.{name}") for name, each in model.named_parameters())

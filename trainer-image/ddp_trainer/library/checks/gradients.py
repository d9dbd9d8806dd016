"""Names the parameters whose gradients are missing, or were not averaged over the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from ddp_trainer.exit_codes import ConfigurationError

_UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, each) for name, each in model.named_parameters() if each.requires_grad)


def unused(model: nn.Module, error: RuntimeError) -> list[str] | None:
    """Return the parameters that DDP's error names; None: it is another error."""
    indices = _UNUSED_INDICES.search(str(error))
    if indices is None:
        return None
    names = [name for name, _ in _trained(model)]
    last = len(names) - 1  # FixedBuckets has the last parameter first
    return [names[number] for number in sorted(last - int(each) for each in indices[1].split())]


def incomplete(names: Sequence[str], *, rank: int) -> ConfigurationError:
    """Return the error of a step in which some parameters had no gradient."""
    return ConfigurationError(
        f"the loss of rank {rank} does not depend on {', '.join(names)}: set "
        "--find-unused-parameters (find_unused_parameters=True in your own script), or freeze "
        "them, or remove them from the model"
    )


def expect_none(model: nn.Module) -> None:
    """Check that a pass that averaged nothing has left no gradients.

    Raises:
        ConfigurationError: a parameter has one that is not zero.
    """
    for name, parameter in _trained(model):
        gradient = parameter.grad
        # An optimizer may clear gradients by zeros.
        if gradient is not None and (gradient.is_sparse or gradient.any()):
            raise ConfigurationError(
                f"{name} has a gradient that was not averaged over the ranks: the loop calls "
                "the model itself. Call what job.wrap() returned, as in net = job.wrap(model)"
            )

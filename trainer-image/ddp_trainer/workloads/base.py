"""What a workload must bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from ddp_trainer.exit_codes import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A set of samples held in memory; the first dimension of both counts samples."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All that the training loop needs to know."""

    train: Samples
    test: Samples
    model: Callable[[], nn.Module]
    """Builds the model with fresh weights from torch's current seed."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → mean loss, a scalar."""
    score: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → one number per sample; their mean is the reported accuracy."""


def at_least(minimum: int, **options: int) -> None:
    """Check options of a workload's factory, by their names.

    Raises:
        ConfigurationError: one of them is less than the minimum.
    """
    for name, value in options.items():
        if value < minimum:
            raise ConfigurationError(
                f"--workload-option {name}={value}: set it to {minimum} or more"
            )

"""What a workload must bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, default_collate

from ddp_trainer.exit_codes import ConfigurationError


class SampleSet(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples; the first dimension of both counts samples."""
        ...


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples held in memory; the first dimension of both tensors counts them."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples."""
        chosen = torch.as_tensor(indices)
        return self.inputs[chosen], self.targets[chosen]


class MapSamples:
    """A map-style dataset of pairs (input, target), as `torch.utils.data.DataLoader` takes it."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        collate: Callable[[list[Any]], tuple[Tensor, Tensor]] = default_collate,
    ) -> None:
        """`dataset` needs a length. `collate`: list of pairs → inputs and targets, as tensors."""
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # Dataset does not promise a length

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples."""
        inputs, targets = self.collate([self.dataset[index] for index in indices])
        return inputs, targets


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All that the training loop needs to know."""

    train: SampleSet
    test: SampleSet
    model: Callable[[], nn.Module]
    """Builds the model with fresh weights from torch's current seed."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → mean loss, a scalar."""
    score: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → one number per sample; their mean is the reported accuracy."""
    optimizer: Callable[[nn.Module, float], Optimizer] | None = None
    """(model, --lr) → an optimizer of its parameters, the same on all ranks; None: AdamW.

    It takes a step without a closure. Its parameter groups may have rates of their own, of which
    each is the peak of the bundled schedule.
    """
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    """(optimizer, steps of the whole training) → a scheduler; None: that of --schedule.

    It is stepped after each step of the optimizer, and its state is saved: it must be plain data.
    It counts steps, of which there are more or fewer than it was told when a job goes on with
    another number of ranks; the bundled one counts samples.
    """


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

"""The parts of a workload."""

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
    """Samples that are read by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples; the first dimension of both is the sample."""
        ...


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples in memory; the first dimension of both tensors is the sample."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples."""
        chosen = torch.as_tensor(indices)
        return self.inputs[chosen], self.targets[chosen]


class MapSamples:
    """Samples of a map-style dataset of pairs (input, target), as for a torch DataLoader."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        collate: Callable[[list[Any]], tuple[Tensor, Tensor]] = default_collate,
    ) -> None:
        """`dataset`: needs a length. `collate`: list of pairs → tensors of inputs and targets."""
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # Dataset does not promise a length

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples."""
        inputs, targets = self.collate([self.dataset[index] for index in indices])
        return inputs, targets


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that the training loop needs."""

    train: SampleSet
    test: SampleSet
    model: Callable[[], nn.Module]
    """Builds the model with fresh weights from torch's current seed."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → mean loss, a scalar."""
    score: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) → one number per sample; their mean is the reported accuracy."""
    optimizer: Callable[[nn.Module, float], Optimizer] | None = None
    """(model, --lr) → an optimizer for its parameters, the same on all ranks; None: AdamW.

    Its step must work without a closure. Parameter groups may have their own learning rates, which
    are then their peaks in the bundled schedule.
    """
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    """(optimizer, steps of the whole training) → a scheduler; None: the one of --schedule.

    It is stepped after each optimizer step. Its state is saved, so it must be plain data. It counts
    steps; their total changes when a job continues with another number of ranks. The bundled
    schedule counts samples instead.
    """


def at_least(minimum: int, **options: int) -> None:
    """Check options of a workload's factory; the keywords are their names.

    Raises:
        ConfigurationError: an option is less than the minimum.
    """
    for name, value in options.items():
        if value < minimum:
            raise ConfigurationError(
                f"--workload-option {name}={value}: set it to {minimum} or more"
            )

"""A workload with running statistics: digits, by a small network with batch norm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Workload
from torch import nn


def load(dropout: float = 0.25) -> Workload:
    """Return the bundled workload with a model that draws random numbers too."""
    return replace(digits.load(), model=partial(network, dropout))


def network(dropout: float) -> nn.Module:
    """Return the model."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(32, 10),
    )

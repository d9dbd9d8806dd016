"""Handwritten digits: 1,797 real 8x8 images that are part of scikit-learn, so no download.

A small convolutional network learns them in seconds on a CPU. So this is the workload of demos, and
of tests that need real learning.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.workloads.base import Samples, Workload

_TEST_FRACTION = 0.2
_SPLIT_SEED = 20_240_501
"""Fixed and independent of the run's seed, so that accuracies of all runs are comparable."""


def load(*, dropout: float = 0.25) -> Workload:
    """Read the images and split them into training and test samples."""
    images, labels = _read()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    tests = int(len(order) * _TEST_FRACTION)
    test, train = order[:tests], order[tests:]
    return Workload(
        train=Samples(inputs=images[train], targets=labels[train]),
        test=Samples(inputs=images[test], targets=labels[test]),
        model=functools.partial(_model, dropout),
        loss=functional.cross_entropy,
        score=_score,
    )


def _read() -> tuple[Tensor, Tensor]:
    # Read scikit-learn's file without its API: importing scikit-learn takes as long as importing
    # torch, for each rank and again after each failure.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("workload digits needs scikit-learn: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels = torch.from_numpy(table[:, :-1]) / 16.0  # the file's grey levels go from 0 to 16
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(table[:, -1].astype(np.int64))


def _model(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def _score(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float()

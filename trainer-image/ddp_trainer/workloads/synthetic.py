"""A perceptron of any size on synthetic data, for measuring throughput.

The labels come from a fixed linear map of the inputs, so the loss falls when training works.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.workloads.base import Samples, Workload, at_least

_SEED = 20_240_502
"""Seed of the data; independent of the run's seed, so that all runs have the same data."""
_TEST_FRACTION = 0.1


def load(
    *,
    samples: int = 8_192,
    features: int = 256,
    width: int = 512,
    layers: int = 3,
    classes: int = 10,
) -> Workload:
    """Make `samples` vectors of `features` numbers; a tenth are test samples.

    The model has `layers` linear layers, the hidden ones of `width` units: about
    (layers - 2) x width² weights, of 4 bytes each.
    """
    at_least(10, samples=samples)
    at_least(2, layers=layers, classes=classes)
    at_least(1, features=features, width=width)
    generator = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn(samples, features, generator=generator)
    targets = (inputs @ torch.randn(features, classes, generator=generator)).argmax(dim=1)
    tests = int(samples * _TEST_FRACTION)
    return Workload(
        train=Samples(inputs=inputs[tests:], targets=targets[tests:]),
        test=Samples(inputs=inputs[:tests], targets=targets[:tests]),
        model=functools.partial(_model, [features, *[width] * (layers - 1), classes]),
        loss=functional.cross_entropy,
        score=_score,
    )


def _model(sizes: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _score(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float()

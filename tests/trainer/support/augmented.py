"""A workload that splits and augments its samples with all common random generators.

`--workload=tests.trainer.support.augmented:load`
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Samples, SampleSet, Workload
from torch import Tensor


class Augmented:
    """Images, each batch of them shifted, noisy and with pixels missing."""

    def __init__(self, samples: SampleSet) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        inputs, targets = self._samples.batch(indices)
        inputs = inputs.roll(random.choice((-1, 0, 1)), dims=-1)
        inputs = inputs + torch.from_numpy(np.random.normal(0, 0.1, inputs.shape)).float()
        return inputs * (torch.rand(inputs.shape) > 0.1), targets


def load() -> Workload:
    workload = digits.load()
    order = list(range(len(workload.train)))
    random.shuffle(order)
    inputs, targets = workload.train.batch(order)
    train = Augmented(Samples(inputs=inputs, targets=targets))
    return replace(workload, train=train, test=Augmented(workload.test))

"""Digits in double precision and without dropout: `--workload=tests.trainer.support.doubles:load`

The loss of a step is then the same however its samples are shared out, and stays so. In single
precision the first hundred steps show no difference either; but by then some unit's activations are
all but zero, and Adam makes a whole step of what is rounded away on one side and not on the other.
"""

from __future__ import annotations

from dataclasses import replace

from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Samples, SampleSet, Workload
from torch import nn


def load() -> Workload:
    """The bundled workload, but for that."""
    single = digits.load(dropout=0.0)

    def model() -> nn.Module:
        return single.model().double()

    return replace(single, train=_double(single.train), test=_double(single.test), model=model)


def _double(samples: SampleSet) -> Samples:
    assert isinstance(samples, Samples)
    return Samples(inputs=samples.inputs.double(), targets=samples.targets)

"""The digits workload, with what a test needs besides: it ignores how samples are shared out, or it
trains slowly until it is told to end. One file, as pods get its text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Samples, SampleSet, Workload
from torch import Tensor, nn

SLOW_BATCH_SECONDS = 0.5


def single(*, slow_until: Path | None = None) -> Workload:
    """The bundled workload, slow until there is such a file."""
    return _slow(digits.load(), slow_until)


def doubles(*, slow_until: Path | None = None) -> Workload:
    """Digits in double precision and without dropout.

    The loss of a step is then the same however its samples are shared out, and stays so. In single
    precision the first hundred steps show no difference either; but by then some unit's activations
    are all but zero, and Adam makes a whole step of what is rounded away on one side and not on the
    other.
    """
    bundled = digits.load(dropout=0.0)

    def model() -> nn.Module:
        return bundled.model().double()

    train, test = _double(bundled.train), _double(bundled.test)
    return _slow(replace(bundled, train=train, test=test, model=model), slow_until)


def _double(samples: SampleSet) -> Samples:
    assert isinstance(samples, Samples)
    return Samples(inputs=samples.inputs.double(), targets=samples.targets)


def _slow(workload: Workload, until: Path | None) -> Workload:
    return workload if until is None else replace(workload, train=_Slow(workload.train, until))


@dataclass(frozen=True)
class _Slow:
    samples: SampleSet
    until: Path

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        if not self.until.exists():
            time.sleep(SLOW_BATCH_SECONDS)
        return self.samples.batch(indices)

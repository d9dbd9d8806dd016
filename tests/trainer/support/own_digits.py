"""The digits workload for tests: in double precision, or slow until a file exists.

It is one file, because pods get its text.
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
    """Return the bundled workload, slow until this file exists."""
    return _slow(digits.load(), slow_until)


def doubles(*, slow_until: Path | None = None) -> Workload:
    """Return digits in double precision and without dropout.

    The loss of a step is then the same for any distribution of its samples over ranks. In single
    precision this ends after about a hundred steps: some activations are nearly zero by then, and
    Adam turns a difference in rounding into a whole step.
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

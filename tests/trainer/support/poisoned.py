"""A workload with one sample that is not a number."""

from __future__ import annotations

from ddp_trainer.workloads import digits
from ddp_trainer.workloads.base import Samples, Workload

BAD_SAMPLE = 7


def load() -> Workload:
    """Return the bundled workload with a bad sample."""
    workload = digits.load()
    assert isinstance(workload.train, Samples)
    workload.train.inputs[BAD_SAMPLE] = float("nan")
    return workload

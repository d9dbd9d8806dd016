"""NCCL's communicators are released in one process, and a busy GPU does not block Python."""

from __future__ import annotations

import pytest

from tests.trainer.gpu.runs import run_alone

pytestmark = [pytest.mark.timeout(600)]


def test_two_hundred_groups_leave_nothing_behind() -> None:
    *_, early, late = run_alone("cycles", "200")
    print(early, late, sep="\n")
    assert late["descriptors"] <= early["descriptors"] + 5
    assert late["threads"] <= early["threads"] + 5
    assert late["device MiB"] <= early["device MiB"] + 64
    assert late["host MiB"] <= early["host MiB"] + 200


def test_python_runs_while_the_gpu_is_busy() -> None:
    [pauses] = run_alone("busy", "20")
    print(pauses)
    assert pauses["mark"] < 1.0

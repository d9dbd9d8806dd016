"""Samples that are augmented at random are the same ones after a failure, to the bit."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from ddp_trainer.run.seeds import seed_step

from tests.trainer.support.pods import Job, assert_same, job

RANKS = 3
"""Three ranks rehearse the first step of a group, which also draws random numbers."""
LAST_STEP = 30  # 2 epochs of ceil(ceil(1438 / 3) / 32) steps
FLAGS = ("--workload=tests.trainer.support.augmented:load", "--epochs=2")


def trained(folder: Path, *, kill: bool) -> Job:
    """Train; return the job after its end."""
    with job(folder, nodes=RANKS) as run:
        slow = ("--step-delay-seconds=0.02", f"--trace-samples={run.traces}")
        pods = run.start_all(*FLAGS, *slow)
        if kill:
            run.wait_for_step(9)
            os.kill(pods[1].rank_pids()[0], signal.SIGKILL)
            pods[1].wait_for_log("continuing from memory")
        for pod in pods:
            assert pod.wait() == 0, pod.log
    return run


@pytest.mark.nightly
def test_a_lost_rank_changes_no_augmented_sample(tmp_path: Path) -> None:
    """Scripts are tested with each loss; this is the bundled trainer, which also shuffles."""
    actual, expected = (trained(tmp_path / str(kill), kill=kill) for kill in (True, False))
    assert_same(actual.state(LAST_STEP), expected.state(LAST_STEP))
    messages = [run.pods[0].message["accuracy"] for run in (actual, expected)]
    assert messages[0] == messages[1]


def drawn() -> list[Any]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


def test_numbers_of_a_step_differ_by_rank_and_purpose() -> None:
    found = []
    purposes: list[tuple[int, int, Literal["data", "model", "evaluation"]]] = [
        (0, 1, "data"),
        (1, 1, "data"),
        (0, 2, "data"),
        (0, 1, "model"),
        (0, 1, "evaluation"),
    ]
    for rank, step, purpose in purposes:
        seed_step(7, rank=rank, step=step, purpose=purpose)
        found.append(drawn())
        seed_step(7, rank=rank, step=step, purpose=purpose)
        assert drawn() == found[-1], "the same again"
    for numbers in zip(*found, strict=True):
        assert len(set(numbers)) == len(numbers)

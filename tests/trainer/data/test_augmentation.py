"""Samples that are augmented at random are the same ones after a failure: to the bit.

With three ranks: only then is the first step of a group rehearsed, on a batch and with dropout that
count for nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from ddp_trainer.run.seeds import seed_step

from tests.trainer.support.pods import Job, assert_same, job

RANKS = 3
LAST_STEP = 30  # 2 epochs of ceil(ceil(1438 / 3) / 32) steps


def flags(of: Job, *more: str) -> list[str]:
    return [
        *("--workload=tests.trainer.support.augmented:load", f"--trace-samples={of.traces}"),
        *("--epochs=2", "--checkpoint-every-steps=7", "--keep-checkpoints=10"),
        "--step-delay-seconds=0.02",
        *more,
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with job(tmp_path_factory.mktemp("undisturbed"), nodes=RANKS) as reference:
        for pod in reference.start_all(*flags(reference)):
            assert pod.wait() == 0, pod.log
        yield reference


def accuracies(of: Job) -> list[tuple[int, float]]:
    """Step and accuracy of each evaluation."""
    lines = map(json.loads, (of.checkpoints / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["accuracy"]) for line in lines if "accuracy" in line]


def assert_same_run(actual: Job, expected: Job) -> None:
    assert_same(actual.state(LAST_STEP), expected.state(LAST_STEP))
    assert accuracies(actual) == accuracies(expected)


def test_a_rank_is_killed_and_the_group_formed_anew(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, nodes=RANKS) as wounded:
        pods = wounded.start_all(*flags(wounded, "--checkpoint-every-steps=1000"))
        wounded.wait_for_step(9)
        os.kill(pods[1].rank_pids()[0], signal.SIGKILL)
        pods[1].wait_for_log("continuing from memory")
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert_same_run(wounded, undisturbed)


def test_all_are_killed_and_resume_from_a_checkpoint(tmp_path: Path, undisturbed: Job) -> None:
    with job(tmp_path, nodes=RANKS) as killed:
        first = killed.start_all(*flags(killed))
        first[0].wait_for_log("(step 7)")  # its checkpoint is whole, however slow the disk is
        for pod in first:
            pod.kill()
        pods = killed.start_all(*flags(killed))
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert "resuming from checkpoint" in pods[0].log
        assert_same_run(killed, undisturbed)


def drawn() -> list[Any]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


def test_a_steps_numbers_are_its_ranks_own_and_no_other_purposes() -> None:
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

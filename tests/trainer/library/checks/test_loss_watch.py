"""The first loss that is not finite, and its samples."""

from __future__ import annotations

from pathlib import Path

import torch
from ddp_trainer.library.checks.loss_watch import LossWatch, NonFinite

from tests.trainer.support.pods import job
from tests.trainer.support.poisoned import BAD_SAMPLE


def test_the_first_loss_that_is_not_finite_is_found() -> None:
    watch = LossWatch()
    assert watch.first(0) is None
    watch.note((1, [torch.tensor(0.5), 0.25], [4, 5]))
    watch.note((2, [], [6]))
    assert watch.first(0) is None
    watch.note((3, [0.5, torch.tensor(float("inf"))], range(100, 164)))
    watch.note((4, [float("nan")], [9]))
    found = watch.first(2)
    assert found == NonFinite(3, 2, "inf", list(range(100, 110)), 64)
    assert str(found) == (
        "the loss is first inf in step 3 of rank 2: samples 100, 101, 102, 103, 104, 105, 106, "
        "107, 108, 109, …"
    )
    watch.clear()
    assert watch.first(2) is None


def test_messages_are_short() -> None:
    assert len(str(NonFinite(10**9, 10**5, "-inf", [10**9] * 10, 64))) <= 200


def test_rank_0_names_the_rank_and_its_samples_once(tmp_path: Path) -> None:
    """A sample is not a number, and so are all losses after it."""
    arguments = ("--workload", "tests.trainer.support.poisoned:load", "--epochs", "1")
    with job(tmp_path, nodes=1, local_world_size=2) as run:
        [pod] = run.start_all(
            *arguments, "--trace-samples", str(run.traces), "--log-every-steps", "4"
        )
        assert pod.wait() == 0, pod.log
        [(rank, step, samples)] = [
            (rank, step, samples)
            for rank in range(2)
            for step, samples in run.begun_by(rank)
            if BAD_SAMPLE in samples
        ]
    shown = ", ".join(map(str, samples[:10]))
    assert f"the loss is first nan in step {step} of rank {rank}: samples {shown}" in pod.log
    assert pod.log.count("the loss is first nan") == 1, pod.log

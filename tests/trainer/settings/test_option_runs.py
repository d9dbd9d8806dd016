"""Whole runs with many options at once: they resume to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.trainer.support.pods import assert_same, job

OPTIONS = [
    "--workload=synthetic",
    "--workload-option=samples=600",
    "--workload-option=width=32",
    "--epochs=2",
    "--batch-size=16",
    "--accumulate-steps=2",
    "--precision=bf16",
    "--clip-grad-norm=1",
    "--warmup-steps=3",
    "--min-lr-ratio=0.1",
    "--skip-zero-grads",
    "--gradient-compression=bf16",
    "--no-broadcast-buffers",
    "--no-gradient-as-bucket-view",
    "--deterministic",
    "--checkpoint-every-steps=7",
    "--keep-checkpoints=5",
    "--verify-replicas=2",
    "--skip-nonfinite-steps=2",
]
PROBES = ["--verify-gradients=1"]
LAST_STEP = 18  # 2 epochs of ceil(540 / 2 / (2 x 16)) steps


def test_a_run_with_many_options_resumes_to_the_bit(tmp_path: Path) -> None:
    """With probes of gradients, which leave no trace."""
    with job(tmp_path / "whole") as whole, job(tmp_path / "resumed") as resumed:
        for pod in whole.start_all(*OPTIONS):
            assert pod.wait() == 0, pod.log
        name = "step-00000007"
        shutil.copytree(whole.checkpoints / name, resumed.checkpoints / name)
        first, second = resumed.start_all(*OPTIONS, *PROBES)
        assert (first.wait(), second.wait()) == (0, 0), first.log
        assert "resuming from checkpoint" in first.log
        assert all("flipped bits" not in pod.log for pod in (*whole.pods, *resumed.pods))
        assert_same(resumed.state(LAST_STEP), whole.state(LAST_STEP))

"""Whole runs with many options at once: they resume to the bit, and find their data."""

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
    "--gradient-compression=powersgd",
    "--powersgd-start-step=4",
    "--no-broadcast-buffers",
    "--no-gradient-as-bucket-view",
    "--deterministic",
    "--checkpoint-every-steps=7",
    "--keep-checkpoints=5",
]
LAST_STEP = 18  # 2 epochs of ceil(540 / 2 / (2 x 16)) steps


def test_a_run_with_many_options_resumes_to_the_bit(tmp_path: Path) -> None:
    with job(tmp_path / "whole") as whole, job(tmp_path / "resumed") as resumed:
        for pod in whole.start_all(*OPTIONS):
            assert pod.wait() == 0, pod.log
        name = "step-00000007"
        shutil.copytree(whole.checkpoints / name, resumed.checkpoints / name)
        first, second = resumed.start_all(*OPTIONS)
        assert (first.wait(), second.wait()) == (0, 0), first.log
        assert "resuming from checkpoint" in first.log
        assert whole.state(7)["compression"]["left_out"], "powersgd had something to remember"
        assert_same(resumed.state(LAST_STEP), whole.state(LAST_STEP))


def test_pods_train_on_what_rank_0_alone_can_read(tmp_path: Path) -> None:
    text = tmp_path / "texts"
    text.mkdir()
    for number in range(3):
        (text / str(number)).write_text(f"line {number} of some text\n" * 100)
    options = [
        *("--workload=gpt", "--workload-option=context=16", "--workload-option=layers=1"),
        *("--workload-option=width=16", "--epochs=1", "--stage=broadcast"),
    ]
    with job(tmp_path) as two:
        pods = [
            two.start(rank, *options, f"--data={data}", f"--stage-dir={tmp_path / str(rank)}")
            for rank, data in enumerate((text, "/not/mounted/here"))
        ]
        for pod in pods:
            assert pod.wait() == 0, pod.log
        assert "sent texts-" in pods[0].log
        assert pods[0].message["step"] == pods[1].message["step"] > 0

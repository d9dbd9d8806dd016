"""Bits flip in the memory of a GPU; the right rank ends, and the others return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.exit_codes import ExitCode

from tests.trainer.library.checks.test_verification import ends_of, variables
from tests.trainer.library.runs import script_job

pytestmark = [pytest.mark.timeout(600)]
RANKS = 3
NCCL = {"DDP_BACKEND": "nccl"}


def test_a_rank_with_a_flipped_bit_ends_and_the_others_return(tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    settings: dict[str, Any] = {"ranks": RANKS, "nodes": RANKS, "device": "cuda", "script": "flips"}
    with script_job(
        undisturbed, **settings, variables=variables(undisturbed, [], every=5) | NCCL
    ) as job:
        pods = job.start_all("--epochs", "2")
        assert [pod.wait() for pod in pods] == [0] * RANKS, pods[0].log
        expected = ends_of(*(pod.log for pod in pods))
    more = variables(tmp_path, [(1, 13, "parameter")], every=5) | NCCL
    with script_job(tmp_path, **settings, variables=more) as job:
        first, failed, last = job.start_all("--epochs", "2")
        assert failed.wait() == ExitCode.FLIPPED_BITS, failed.log
        successor = job.start(1, "--epochs", "2")
        for pod in (first, last, successor):
            assert pod.wait() == 0, pod.log
        assert "returning from step 15 to step" in first.log
        assert ends_of(*(pod.log for pod in job.pods)) == expected

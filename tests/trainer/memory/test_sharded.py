"""A model that FSDP2 has sharded resumes from its snapshots, each rank from its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.trainer.support.pods import job


@pytest.mark.slow
def test_sharded_training_continues_bit_for_bit(tmp_path: Path) -> None:
    loopback = {"GLOO_SOCKET_IFNAME": "lo"}
    with job(tmp_path, nodes=1, local_world_size=4, extra_environment=loopback) as four:
        [pod] = four.start_all("--", sys.executable, "-m", "tests.trainer.memory.sharded")
        pod.assert_keeps_its_ranks()

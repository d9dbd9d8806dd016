"""A model that FSDP2 has sharded resumes from its snapshots, each rank from its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.ports import free_port

_RANKS = 4
_SECONDS = 240


@pytest.mark.slow
def test_sharded_training_continues_bit_for_bit() -> None:
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(_RANKS)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.memory.sharded"],
            env={**os.environ, **group, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(_RANKS)
    ]
    try:
        outputs = [process.communicate(timeout=_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * _RANKS, "\n".join(outputs)

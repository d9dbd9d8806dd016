"""A launcher that cannot use its memory volume.

`tests/trainer/memory/test_restarts.py` restores snapshots with real launchers and ranks.
"""

from __future__ import annotations

from pathlib import Path

from tests.trainer.support.worlds import world_job


def test_pod_that_cannot_write_its_volume_trains_without_it(tmp_path: Path) -> None:
    (volume := tmp_path / "volume").mkdir()
    (volume / "copies").touch()
    variables = {
        "DDP_MEMORY_DIR": str(volume),
        "DDP_MEMORY_BYTES": "1000",
        "DDP_MEMORY_COPIES": "0",
    }
    with world_job(tmp_path) as job:
        pod = job.start(0, nodes=1, variables=variables)
        pod.wait_for(1)
        assert "memory: no snapshots are kept" in pod.log
        assert "memory" not in pod.news()
        job.finish()
        assert pod.wait() == 0

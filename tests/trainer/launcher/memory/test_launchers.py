"""Launchers keep the snapshots of their ranks, and restore them after a restart or a loss."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.trainer.support.memory_jobs import memory_job
from tests.trainer.support.pods import until


def test_ranks_that_die_resume_from_memory_in_their_pods(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=2, local_world_size=2) as job:
        pods = [job.start(0), job.start(1)]
        for pod in pods:
            began = pod.wait_for(1)
            assert (began["path"], began["reason"]) == (None, "no pod has a snapshot")
        for step in (5, 6, 7):
            job.save(step)
        memory = job.memory()
        assert (memory["copies"], memory["bytes"]) == (1, 2000)
        assert memory["restored"]["generation"] == 1
        number = pods[0].news()["number"]
        pods[1].end(1, 3, local_rank=1)
        assert pods[0].news(after=number, wait=25)["failures"][0]["nodeRank"] == 1
        job.restart(pods, 2)
        for pod in pods:
            began = pod.wait_for(2)
            assert (began["step"], began["resumed"]) == (7, 1)
            assert "/own/" in began["path"], "nothing is fetched"
        assert job.memory()["restored"]["step"] == 7
        assert job.memory()["step"] == 7
        job.save(8)
        job.job.finish()
        assert [pod.wait() for pod in pods] == [0, 0]


def test_a_pod_that_replaces_node_rank_0_fetches_its_snapshots(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=3) as job:
        pods = [job.start(node_rank) for node_rank in range(3)]
        for pod in pods:
            pod.wait_for(1)
        job.save(5)
        pods[0].process.send_signal(signal.SIGKILL)
        pods[0].process.wait()
        pods[0] = job.start(0, generation=2)
        pods[0].wait_to_listen()
        job.restart(pods, 2)
        for node_rank, pod in enumerate(pods):
            began = pod.wait_for(2)
            assert (began["step"], began["rank"]) == (5, node_rank)
        assert "/restored/" in pods[0].wait_for(2)["path"]
        assert job.memory()["restored"] == {
            **job.memory()["restored"],
            "generation": 2,
            "step": 5,
            "reason": "",
        }
        # Rank 2 had its copy in the lost pod. It has one again before anything is saved.
        again = job.volumes / pods[0].name / "copies" / "1-5-2-3-sharded.snapshot"
        until(again.exists, "a copy of what was restored")
        pods[2].process.send_signal(signal.SIGKILL)
        pods[2].process.wait()
        pods[2] = job.start(2, generation=3)
        pods[2].wait_to_listen()
        job.restart(pods, 3)
        assert [pod.wait_for(3)["step"] for pod in pods] == [5, 5, 5]
        job.save(6)
        until(lambda: not [*job.volumes.glob("*/restored/*")], "the fetched snapshots to go")
        job.job.finish()
        assert [pod.wait() for pod in pods] == [0, 0, 0]


def test_a_pod_that_cannot_write_its_volume_trains_without(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=1) as job:
        (job.volumes / "pod-0").mkdir()
        (job.volumes / "pod-0" / "copies").touch()
        pod = job.job.start(
            0,
            nodes=1,
            variables={
                "DDP_MEMORY_DIR": str(job.volumes / "pod-0"),
                "DDP_MEMORY_BYTES": "1000",
                "DDP_MEMORY_COPIES": "0",
            },
        )
        pod.wait_for(1)
        assert "memory: no snapshots are kept" in pod.log
        assert "memory" not in pod.news()
        job.job.finish()
        assert pod.wait() == 0


def test_a_wrong_variable_is_an_error_of_configuration(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=1) as job:
        pod = job.job.start(0, nodes=1, variables={"DDP_MEMORY_DIR": str(job.volumes)})
        assert pod.wait() == 64
        assert pod.message["error"] == "DDP_MEMORY_COPIES is '': set it to a whole number"

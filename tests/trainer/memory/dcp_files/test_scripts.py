"""Real launchers and an unchanged script resume from memory although pods lose their disks."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.trainer.memory.dcp_files import plain_script
from tests.trainer.support.memory_jobs import MemoryJob, memory_job
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldPod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
_HERE = Path(plain_script.__file__).parent


class Pods:
    """The pods of a job, each with a disk of its own."""

    def __init__(self, job: MemoryJob, disks: Path, *, nodes: int, ranks: int, steps: int) -> None:
        self.job = job
        self.disks = disks
        self.folder = job.job.folder
        self.ranks = ranks
        self.steps = steps
        self.generation = 1
        self.target = 0
        self.train_to(0)
        self.pods = [self.start(node_rank) for node_rank in range(nodes)]
        for pod in self.pods:
            pod.wait_to_listen()

    def start(self, node_rank: int) -> WorldPod:
        """Start a pod with an empty disk."""
        disk = self.disks / f"pod-{len(self.job.job.pods)}"
        disk.mkdir()
        path = [str(_HERE / "pod_address"), os.environ.get("PYTHONPATH", "")]
        variables = {
            "CHECKPOINTS": str(disk / "ckpt"),
            "DDP_CHECKPOINTS_IN_MEMORY": str(disk / "ckpt"),
            "DDP_LOCAL_PATHS": str(disk),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "STEPS": str(self.steps),
            "TEST_LAUNCHER": f"127.0.0.{1 + node_rank}",
        }
        if self.ranks == 1:  # as the operator does
            variables |= {"RANK": str(node_rank), "LOCAL_RANK": "0"}
        return self.job.start(node_rank, generation=self.generation, variables=variables)

    def train_to(self, step: int) -> None:
        """Let the ranks train to a step."""
        self.target = step
        new = self.folder / "target.new"
        new.write_text(str(step))
        new.rename(self.folder / "target")

    def complete(self, step: int) -> None:
        """Train to a step, and wait until each step is complete: otherwise ranks may skip it."""
        for each in range(self.target + 1, step + 1):
            self.train_to(each)
            self.job.wait_until_complete(each)

    def began(self) -> list[tuple[int, int]]:
        """Return process ID and first step of each rank of this generation; wait for them."""
        files = [
            self.folder / f"{rank}.{self.generation}" for rank in range(len(self.pods) * self.ranks)
        ]

        def are_there() -> bool:
            for pod in self.pods:
                assert pod.process.poll() is None, pod.log
            return all(file.exists() and file.read_text().count(" ") == 2 for file in files)

        until(are_there, f"all ranks of generation {self.generation}")
        found = [tuple(map(int, file.read_text().split())) for file in files]
        assert all(step == listed for _, step, listed in found), found
        return [(pid, step) for pid, step, _ in found]

    def lose_pod(self, node_rank: int) -> None:
        """Lose a pod with its processes, memory and disk, and start another one."""
        pids = [pid for pid, _ in self.began()]
        pod = self.pods[node_rank]
        pod.process.kill()
        pod.process.wait()
        for pid in pids[node_rank * self.ranks : (node_rank + 1) * self.ranks]:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.disks / pod.name)
        shutil.rmtree(self.job.volumes / pod.name)
        self.generation += 1
        self.pods[node_rank] = self.start(node_rank)
        self.pods[node_rank].wait_to_listen()
        self.job.restart(self.pods, self.generation)

    def kill_rank(self, rank: int) -> None:
        """Kill a rank; all ranks restart in their pods."""
        number = self.pods[0].news()["number"]
        os.kill(self.began()[rank][0], signal.SIGKILL)
        leader = self.pods[0]
        until(lambda: bool(leader.news(after=number, wait=25)["failures"]), "the failure")
        self.generation += 1
        self.job.restart(self.pods, self.generation)

    def check_end(self) -> None:
        """Check that all ranks end, and that each step had the loss of an undisturbed training."""
        codes = [pod.wait() for pod in self.pods]
        assert codes == [0] * len(self.pods), "\n".join(pod.log for pod in self.pods)
        for rank in range(len(self.pods) * self.ranks):
            expected = (self.folder / f"expected-{rank}").read_text().split("\n")
            lines = (self.folder / f"losses-{rank}").read_text().splitlines()
            losses = [line.split() for line in lines]
            assert {int(step) for step, _ in losses} == set(range(1, self.steps + 1))
            assert all(loss == expected[int(step) - 1] for step, loss in losses)


@contextmanager
def pods(
    folder: Path, how: str, *, nodes: int = 2, ranks: int = 1, steps: int = 8, preload: bool = True
) -> Iterator[Pods]:
    """Start a job of the script; its disks are removed at the end."""
    flags = () if preload else ("--no-preload",)
    command = (*flags, "--", sys.executable, str(_HERE / "plain_script.py"), how)
    disks = folder / "disks"
    disks.mkdir()
    with memory_job(folder, nodes=nodes, local_world_size=ranks, command=command) as job:
        yield Pods(job, disks, nodes=nodes, ranks=ranks, steps=steps)


def test_lost_pod_with_its_disk_resumes_from_the_last_save(tmp_path: Path) -> None:
    with pods(tmp_path, "save", preload=False) as job:
        job.complete(3)
        assert not job.pods[0].news()["savedInPod"], "the operator may restart in place"
        job.lose_pod(1)
        assert [step for _, step in job.began()] == [3, 3]
        # What is not in memory is not on a disk either: pods would find different steps.
        for disk in job.disks.iterdir():
            assert [each.name for each in (disk / "ckpt").iterdir()] == ["step-3"]
        job.train_to(job.steps)
        assert not job.pods[0].news()["savedInPod"]
        job.check_end()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "preload"), [("async_save", True), ("async_save", False), ("save", True)]
)
def test_lost_pods_and_ranks_resume_from_the_last_save(
    how: str, preload: bool, tmp_path: Path
) -> None:
    with pods(tmp_path, how, ranks=2, preload=preload) as job:
        job.complete(3)
        job.lose_pod(0)
        assert [step for _, step in job.began()] == [3] * 4
        job.complete(5)
        job.kill_rank(3)
        assert [step for _, step in job.began()] == [5] * 4
        job.lose_pod(1)  # before a save: the snapshots were restored, and copied again
        assert [step for _, step in job.began()] == [5] * 4
        job.train_to(job.steps)
        job.check_end()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["save", "async_save"])
def test_random_losses_never_change_a_loss(how: str, tmp_path: Path) -> None:
    random, losses = Random(20), 20
    with pods(tmp_path, how, nodes=3, steps=4 * losses + 2) as job:
        complete = 0
        for _ in range(losses):
            job.train_to(job.target + 4)

            def is_newer() -> bool:
                return (job.job.memory().get("step") or 0) > complete  # noqa: B023

            until(is_newer, f"a step after {complete} to be complete")
            complete = job.job.memory()["step"]
            if random.random() < 0.5:
                job.lose_pod(random.randrange(3))
            else:
                job.kill_rank(random.randrange(3))
            [resumed] = {step for _, step in job.began()}
            assert resumed >= complete
            complete = resumed
        job.train_to(job.steps)
        job.check_end()

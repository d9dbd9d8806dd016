"""Launchers on nodes in uneven blocks: any block may be lost at once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ddp_protocol.copies import fingerprint, order_by_domain

from tests.trainer.memory.stand_in import SIZE
from tests.trainer.support.memory_jobs import MemoryJob, memory_job
from tests.trainer.support.pods import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
_NODES, _RANKS = 6, 2
_STAND_IN = ("--no-preload", "--", sys.executable, "-m", "tests.trainer.memory.stand_in")
_SHARDED = ("--", sys.executable, "-m", "tests.trainer.memory.restarting", "plain")


class Blocks:
    """A job on nodes in blocks, of which pods are lost and replaced."""

    def __init__(self, job: MemoryJob, blocks: str) -> None:
        """`blocks`: of the pods, by node rank."""
        self.job = job
        self.blocks = [*blocks]
        self.generation = 1
        self.step = 0
        self.pods = [job.start(node_rank) for node_rank in range(len(blocks))]
        for pod in self.pods:
            pod.wait_to_listen()

    @property
    def folder(self) -> Path:
        return self.job.job.folder

    @property
    def order(self) -> str:
        return ",".join(map(str, order_by_domain([(block,) for block in self.blocks])))

    def train(self, steps: int) -> None:
        """Complete some steps."""
        for _ in range(steps):
            self.step += 1
            new = self.folder / "target.new"
            new.write_text(str(self.step))
            new.rename(self.folder / "target")
            self.job.wait_until_complete(self.step)

    def put_order(self) -> None:
        """Send the order to the running group, as the operator does once it knows the nodes."""
        assert self.pods[0].put(1, 0, nodes=len(self.pods), copyOrder=self.order)[0] == 200
        assert self.pods[0].news()["copyOrder"] == fingerprint(self.order)

    def replace(self, node_ranks: list[int], block: str, pids: Sequence[int]) -> None:
        """Lose pods at once, with the processes of their ranks; their successors are in a block."""
        for node_rank in node_ranks:
            self.pods[node_rank].process.kill()
            self.pods[node_rank].process.wait()
            for rank in range(node_rank * _RANKS, (node_rank + 1) * _RANKS):
                os.kill(pids[rank], signal.SIGKILL)
        self.generation += 1
        for node_rank in node_ranks:
            self.pods[node_rank] = self.job.start(node_rank, generation=self.generation)
            self.blocks[node_rank] = block
        for node_rank in node_ranks:
            self.pods[node_rank].wait_to_listen()
        self.job.restart(self.pods, self.generation, self.order)

    def ranks(self) -> list[dict[str, Any]]:
        """Return what all ranks began with in this generation."""
        files = [
            self.folder / f"{rank}.{self.generation}" for rank in range(len(self.pods) * _RANKS)
        ]
        until(lambda: all(file.exists() for file in files), "all ranks to begin")
        return [json.loads(file.read_text()) for file in files]

    def logs(self) -> str:
        return "\n".join(pod.log for pod in self.pods)

    def pids(self) -> list[int]:
        """Return the processes of all ranks."""
        return [rank["pid"] for rank in self.ranks()]

    def check_resumed(self) -> None:
        """Check that all ranks have resumed at the newest step, equal to the bit."""
        found = {(rank["step"], rank["right"]) for rank in self.ranks()}
        assert found == {(self.step, True)}, self.logs()


@pytest.mark.parametrize(
    "rounds", [10, pytest.param(100, marks=pytest.mark.nightly)], ids=["10", "100"]
)
def test_any_block_can_be_lost_after_any_replacements(tmp_path: Path, rounds: int) -> None:
    random = Random(rounds)
    (tmp_path / "target").write_text("0")
    least = 2 * 2 * _RANKS * SIZE
    with memory_job(
        tmp_path, nodes=_NODES, local_world_size=_RANKS, command=_STAND_IN, size=least
    ) as job:
        group = Blocks(job, "aabbbc")
        group.put_order()
        lost_sizes = set()
        for number in range(rounds):
            group.train(random.randint(1, 2))
            if number % 2:  # copies of more than half of the pods do not fit into the others
                small = [each for each in "abc" if group.blocks.count(each) < _NODES // 2]
                group.replace([random.randrange(_NODES)], random.choice(small), group.pids())
            else:
                block = random.choice(group.blocks)
                lost = [rank for rank, each in enumerate(group.blocks) if each == block]
                group.replace(lost, block, group.pids())
                lost_sizes.add(len(lost))
            group.check_resumed()
        assert len(lost_sizes) > 1


@pytest.mark.nightly
def test_sharded_training_survives_a_lost_block(tmp_path: Path) -> None:
    blocks, lost_step = "aabbbc", 3
    with memory_job(
        tmp_path, nodes=_NODES, local_world_size=_RANKS, command=_SHARDED, size=4 << 20
    ) as job:
        group = Blocks(job, blocks)
        group.put_order()
        for step in range(1, lost_step + 1):
            job.wait_until_complete(step)
            if step < lost_step:
                (tmp_path / f"after-{step}").touch()
        lost = [node_rank for node_rank, block in enumerate(blocks) if block == "b"]
        pids = [int((tmp_path / f"{rank}.1").read_text()) for rank in range(_NODES * _RANKS)]
        group.replace(lost, "b", pids)
        codes = [pod.wait() for pod in group.pods]
        assert codes == [0] * _NODES, group.logs()
        for rank in range(_NODES * _RANKS):
            begin = f"rank {rank} begins after step {lost_step} in generation 2\n"
            assert begin in group.logs()
            assert f"rank {rank} ends as without a loss\n" in group.logs()

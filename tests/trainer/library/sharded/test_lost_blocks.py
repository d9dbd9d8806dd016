"""Ranks of a sharded training on nodes in uneven blocks: a block is lost, and no result changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_protocol.copies import order_by_domain
from ddp_trainer.process_group.assignment import AssignmentFile

from tests.ports import free_port
from tests.trainer.library.runs import Undisturbed, log_of, script_job
from tests.trainer.library.sharded.sharding import (
    AFTER_STEP,
    BEFORE_JOIN,
    COPIES,
    NEEDS_TORCH,
    PAUSE_STEP,
    PAUSES,
)
from tests.trainer.library.sharded.test_fsdp import FLAGS, LAST_STEP, printed
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import JOB_UID, Job, Pod, until
from tests.trainer.support.worlds import WorldPod

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(900)]

BLOCKS = "abcb"
"""Of each pod, which has one rank. Half of the ranks away, ranks 1 and 3 hold each other's copy."""
LOST = [rank for rank, block in enumerate(BLOCKS) if block == "b"]
ORDER = ",".join(map(str, order_by_domain([(block,) for block in BLOCKS])))
MOVED = f"copies of the ranks' parts go to other failure domains: {ORDER}"


class Blocks:
    """Pods of a job; that of node rank 0 takes the order, as from the operator."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self._status = folder / "status.json"
        self._port = free_port()
        of_all = {**job.extra_environment, "DDP_GENERATION": "1"}
        of_rank_0 = {"DDP_STATUS_PORT": str(self._port), "DDP_STATUS_FILE": str(self._status)}
        job.extra_environment = {**of_all, **of_rank_0}
        self.pods = [job.start(0, *FLAGS)]
        job.extra_environment = of_all
        self.pods += [job.start(node_rank, *FLAGS) for node_rank in range(1, len(BLOCKS))]

    def put_order(self) -> None:
        """Send the order to the running group; return when the ranks can read it."""
        first = self.pods[0]
        launcher = WorldPod("pod-0", "127.0.0.1", first.process, self.job.folder, self._port)  # type: ignore[arg-type]
        launcher.wait_to_listen()
        status, _ = launcher.put(1, 0, jobUid=JOB_UID, nodes=len(BLOCKS), copyOrder=ORDER)
        assert status == 200, first.log
        file = AssignmentFile(self._status)
        until(lambda: (known := file.read()) is not None and known.copy_order == ORDER, "the order")

    def wait_for_all(self, text: str) -> None:
        """Wait until each rank has printed this."""
        for rank, pod in enumerate(self.pods):
            pod.wait_for_log(f"rank {rank} {text}")

    def lose_block(self) -> list[Pod]:
        """Kill the pods of a block at once; return their successors."""
        for rank in LOST:
            self.pods[rank].kill()
        return [self.job.start(rank, *FLAGS) for rank in LOST]

    def check_results(self, undisturbed: Undisturbed) -> None:
        """Check that all pods end as those of a training without a loss, equal to the bit."""
        for pod in self.job.pods:
            if pod.process.poll() != -9:
                assert pod.wait() == 0, pod.log
        expected = printed(log_of(undisturbed("shards", *FLAGS, ranks=len(BLOCKS))))
        assert len(expected) == len(BLOCKS) * (LAST_STEP[len(BLOCKS)] + 1)
        assert set().union(*(printed(pod.log) for pod in self.job.pods)) == expected


@contextmanager
def blocks(folder: Path, **variables: str) -> Iterator[Blocks]:
    size = len(BLOCKS)
    settings = {COPIES: "1", PAUSES: str(folder), **variables}
    with script_job(folder, ranks=size, nodes=size, script="shards", variables=settings) as job:
        yield Blocks(job, folder)


def test_lost_block_continues_from_the_memory_of_the_others(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with blocks(tmp_path) as group:
        group.put_order()
        (tmp_path / BEFORE_JOIN).touch()
        group.wait_for_all(f"took step {PAUSE_STEP}:")
        assert MOVED in group.pods[0].log
        group.lose_block()
        (tmp_path / AFTER_STEP).touch()
        group.check_results(undisturbed)
        survivors = [pod for rank, pod in enumerate(group.pods) if rank not in LOST]
        assert not any("restarting it" in pod.log for pod in survivors), "none lost its state"
        assert "rank 1's part from rank 2, rank 3's part from rank 0" in group.pods[0].log


@pytest.mark.nightly
def test_copies_move_to_other_blocks_while_the_ranks_train(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The ranks of a block die some steps after the order has arrived, and again after that."""
    plan = [
        FaultAt(rank=1, point="within a step", step=PAUSE_STEP + 3),
        FaultAt(rank=3, point="rendezvous"),
        FaultAt(rank=3, point="a snapshot's copy", step=PAUSE_STEP + 8),
        FaultAt(rank=1, point="rendezvous"),
    ]
    faults = tmp_path / "faults"
    with blocks(tmp_path, **fault_injection.environment(plan, faults)) as group:
        (tmp_path / BEFORE_JOIN).touch()
        group.wait_for_all(f"took step {PAUSE_STEP}:")
        assert MOVED not in group.pods[0].log
        group.put_order()
        (tmp_path / AFTER_STEP).touch()
        group.check_results(undisturbed)
        fault_injection.assert_all_happened(plan, faults, group.pods[0].log)
        assert group.pods[0].log.count(MOVED) == 1
        assert group.pods[0].log.count("rank 1's part from rank 2, rank 3's part from rank 0") == 2

"""A rank that hangs is named from NCCL's flight recorder, with ranks that share a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ddp_operator.hang.evidence import explain_answers
from ddp_operator.hang.result import Hang

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.support.pods import TOKEN, job, until
from tests.trainer.support.status_requests import ask

__all__ = ["server"]

RANKS = 2
SCRIPT = """
import datetime, os, signal, sys, threading
import torch, torch.distributed as dist
from tests.trainer.gpu.sharing import share_gpu

fault, rank = sys.argv[1], int(os.environ["RANK"])
share_gpu(str(rank))
dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1))
numbers = torch.ones(1 << 20, device="cuda")
for step in range(3):
    dist.all_reduce(numbers)
torch.cuda.synchronize()
store = dist.distributed_c10d._get_default_store()
store.set(f"rank {rank} is done", "")
store.wait(["rank 0 is done", "rank 1 is done"])
if rank == 1:
    if fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "early":
        threading.Event().wait()
dist.all_reduce(numbers)
torch.cuda.synchronize()
"""
CASES = {
    "stopped": ((1,), "rank 1 did not come; 1 rank waits in all_reduce 4", "; it is stopped"),
    "early": ((1,), "rank 1 did not enter all_reduce 4 of the default group", "at script.py"),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_hang_names_the_rank(tmp_path: Path, server: Server, fault: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ranks, begin, end = CASES[fault]
    found: list[tuple[Hang, bytes]] = []

    def is_named() -> bool:
        """Ask until the ranks wait."""
        code, answer = ask(server.port, "/traces", token=TOKEN)
        if code != 200:
            return False
        found.append((explain_answers([(range(RANKS), answer)]), answer))
        return found[-1][0].ranks == ranks and end in found[-1][0].sentence

    settings = served_by(server, nodes=1, local_world_size=RANKS)
    with job(tmp_path, **settings) as scripts:
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"), fault)
        try:
            until(is_named, f"the rank of {fault}")
        finally:
            print(*found[-1:], pod.log, sep="\n")
        assert pod.process.poll() is None
    assert found[-1][0].sentence.startswith(begin)

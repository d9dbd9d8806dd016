"""A rank that hangs is named, with the reason, from what real launchers show of real gloo ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from ddp_operator.job.failure.hang import Hang
from ddp_operator.views.hangs import explain_answers

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.support.asking import ask
from tests.trainer.support.pods import TOKEN, job, until

__all__ = ["server"]

RANKS = 3
SCRIPT = """
import ctypes, datetime, os, signal, sys, threading, time
import torch, torch.distributed as dist

fault, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
groups = [dist.new_group([0, 1], timeout=datetime.timedelta(hours=1)) for _ in range(2)]


def hold_the_lock():
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex of pthread
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


class Endless(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(10_000)


def load():
    next(iter(torch.utils.data.DataLoader(Endless())))


for step in range(3):
    dist.all_reduce(torch.ones(2))
if rank == 1:
    if fault == "lock":
        hold_the_lock()
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "data":
        load()
    elif fault == "early":
        threading.Event().wait()
if fault == "deadlock" and rank < 2:
    dist.all_reduce(torch.ones(2), group=groups[rank])
if fault == "operation" and rank == 1:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""
OTHERS = "2 ranks wait in all_reduce 4 of the default group since"
NOT_ENTERED = "rank 1 did not enter all_reduce 4 of the default group; 2 ranks wait since"
CASES = {
    "lock": ((1,), f"rank 1 did not come; {OTHERS}", "; a call in C holds its GIL, at script.py"),
    "stopped": ((1,), f"rank 1 did not come; {OTHERS}", "; it is stopped (SIGSTOP)"),
    "data": ((1,), NOT_ENTERED, "; it is at script.py"),
    "early": ((1,), NOT_ENTERED, "; it is in wait, at script.py"),
    "deadlock": ((0, 1), "deadlock since", "each waits for another"),
    "operation": ((1,), "rank 1 entered", "entered all_reduce"),
}


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="this torch records no gloo"
)
@pytest.mark.parametrize("fault", CASES)
def test_a_hang_names_the_rank(tmp_path: Path, server: Server, fault: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ranks, begin, end = CASES[fault]
    found: list[Hang] = []

    def is_named() -> bool:
        """Ask until the ranks wait."""
        code, answer = ask(server.port, "/traces", token=TOKEN)
        if code != 200:
            return False
        found.append(explain_answers([(range(RANKS), answer)]))
        return found[-1].ranks == ranks and end in found[-1].sentence

    settings = served_by(server, nodes=1, local_world_size=RANKS)
    with job(tmp_path, **settings) as scripts:
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"), fault)
        until(is_named, f"the rank of {fault}")
        assert pod.process.poll() is None
    sentence = found[-1].sentence
    assert sentence.startswith(begin), sentence
    assert len(sentence) <= 165

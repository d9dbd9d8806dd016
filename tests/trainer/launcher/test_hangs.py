"""A rank that hangs is named with the reason, from the traces of real launchers and gloo ranks."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from ddp_operator.hang.evidence import Room, explain_answers, read
from ddp_operator.hang.result import Hang
from ddp_operator.job.failure import records

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.support.pods import TOKEN, job, until
from tests.trainer.support.status_requests import ask
from tests.unit.job.builders import NOW, ended, fresh_job

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
    elif fault == "exception":
        raise ValueError("no such sample")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
if fault == "deadlock" and rank < 2:
    dist.all_reduce(torch.ones(2), group=groups[rank])
if fault == "operation" and rank == 1:
    dist.barrier()
shape = 4 if fault == "shapes" and rank == 1 else 2
dist.all_reduce(torch.ones(shape))
dist.all_reduce(torch.ones(2))
"""
ABSENT = "rank 1 did not come; 2 ranks wait in all_reduce 4 of the default group since"
NOT_ENTERED = "rank 1 did not enter all_reduce 4 of the default group; 2 ranks wait since"
CASES = {
    "lock": ((1,), ABSENT, "; a call in C holds its GIL, at script.py", "gil"),
    "stopped": ((1,), ABSENT, "; it is stopped (SIGSTOP)", "stopped"),
    "data": ((1,), NOT_ENTERED, "; it is at script.py", "script"),
    "early": ((1,), NOT_ENTERED, "; it is in wait, at script.py", "script"),
    "deadlock": ((0, 1), "deadlock since", "each waits for another", "script"),
    "operation": ((1,), "rank 1 entered", "entered all_reduce", "script"),
    "shapes": ((1,), "rank 1 entered all_reduce 4", "Float 4, 2 ranks with Float 2", "script"),
}

RARE_HANGS = ("stopped", "data", "deadlock", "operation")


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="this torch records no gloo"
)
@pytest.mark.parametrize(
    "fault",
    [
        *("lock", "early", "shapes"),
        *(pytest.param(rare, marks=pytest.mark.nightly) for rare in RARE_HANGS),
    ],
)
def test_a_hang_names_the_rank(tmp_path: Path, server: Server, fault: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ranks, begin, end, kind = CASES[fault]
    found: list[Hang] = []

    def is_named() -> bool:
        """Ask until the rank is named and all others wait; a slow rank may come late."""
        code, answer = ask(server.port, "/traces", token=TOKEN)
        if code != 200:
            return False
        found.append(explain_answers([(range(RANKS), answer)]))
        sentence = found[-1].sentence
        return found[-1].ranks == ranks and sentence.startswith(begin) and end in sentence

    settings = served_by(server, nodes=1, local_world_size=RANKS)
    with job(tmp_path, **settings) as scripts:
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"), fault)
        until(is_named, f"{begin!r} and {end!r}")
        assert ask(server.port, "/traces")[0] == 403, "without the token"
        assert pod.process.poll() is None
    assert found[-1].kind == kind
    assert len(found[-1].sentence) <= 165


ENDS = {
    "exception": (1, "ValueError: no such sample"),
    "kill": (128 + signal.SIGKILL, "rank 1 was killed (SIGKILL)"),
}


@pytest.mark.parametrize("fault", ENDS)
def test_rank_that_ends_is_named_and_not_those_that_wait(tmp_path: Path, fault: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    code, error = ENDS[fault]
    with job(tmp_path, nodes=1, local_world_size=RANKS) as scripts:
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"), fault)
        assert pod.wait() == code, pod.log
    message = pod.message
    assert (message["rank"], message["exitCode"]) == (1, code)
    assert error in message["error"]
    of_job = fresh_job(replicas=1, nprocPerNode=RANKS)
    failure = records.of_pod(of_job, ended(of_job, code=code, message=json.dumps(message)), NOW)
    assert (failure.rank, failure.exit_code, failure.class_) == (1, code, "Application")


def test_ended_rank_is_listed_with_its_exit_code(tmp_path: Path, server: Server) -> None:
    program = "import os, time\nif os.environ['RANK'] == '0': time.sleep(10_000)"
    (tmp_path / "script.py").write_text(program)
    settings = served_by(server, nodes=1, local_world_size=2)

    def has_left() -> bool:
        code, answer = ask(server.port, "/traces", token=TOKEN)
        if code != 200:
            return False
        _, left = read(answer, range(2), Room())
        return (left.problem, left.cause) == ("its process has ended with exit code 0", "ended")

    with job(tmp_path, **settings) as scripts:
        scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"))
        until(has_left, "rank 1 to leave")

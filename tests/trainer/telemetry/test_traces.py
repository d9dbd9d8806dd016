"""Ranks that hang show their launcher their collective and their stacks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer.telemetry.hook import sitecustomize
from ddp_trainer.telemetry.requests import traces

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.support.pods import TOKEN, job, until
from tests.trainer.support.status_requests import ask

__all__ = ["server"]

SCRIPT = """
import ctypes, os, pathlib, sys, time
import torch, torch.distributed as dist

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo")


def hold_the_lock():
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex of pthread
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


for _ in range(20):
    dist.all_reduce(torch.ones(2))
(folder / f"ready-{rank}").touch()
if rank == 2:
    hold_the_lock()
dist.all_reduce(torch.ones(2))
"""


def traces_of(server: Server) -> dict[int, dict[str, Any]]:
    code, body = ask(server.port, "/traces", token=TOKEN)
    assert code == 200, body
    return {each["rank"]: each for each in json.loads(body)["ranks"]}


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="this torch records no gloo"
)
@pytest.mark.parametrize("shell", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_ranks_show_the_collective_that_they_wait_in(
    tmp_path: Path, server: Server, *, shell: bool
) -> None:
    """As a fork of the launcher, and as any command."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    if shell:
        command = ["sh", "-c", f'{command[0]} "$1" "$2"; exit $?', "sh", *command[1:]]
    with job(tmp_path, **served_by(server, nodes=1, local_world_size=3)) as scripts:
        scripts.start(0, "--", *command)
        for rank in range(3):
            until((tmp_path / f"ready-{rank}").exists, "the script to hang")
        assert ask(server.port, "/traces")[0] == 403

        last: dict[int, dict[str, Any]] = {}

        def shows(**problems: str) -> bool:
            """Ask until the ranks wait; a loaded machine may need several tries."""
            last.update(traces_of(server))
            found = {f"rank_{rank}": each["problem"] for rank, each in last.items()}
            waiting = [each["trace"] for each in last.values() if not each["problem"]]
            return found == problems and all('"retired":false' in trace for trace in waiting)

        until(lambda: shows(rank_0="", rank_1="", rank_2=traces.HOLDS_GIL), "two waiting ranks")
        for rank in (0, 1):
            entries = json.loads(last[rank]["trace"])["entries"]
            assert [each["collective_seq_id"] for each in entries] == [17, 18, 19, 20, 21]
            assert "in all_reduce" in last[rank]["stack"]
        assert "in hold_the_lock" in last[2]["stack"]

        if shell:  # stops in the same way, and takes ten seconds to show
            for each in last.values():
                os.kill(each["process"], signal.SIGKILL)  # the end of the shell does not end it
            return
        os.kill(last[1]["process"], signal.SIGSTOP)
        stopped = "no answer within 5 s: it is stopped (SIGSTOP)"
        until(lambda: shows(rank_0="", rank_1=stopped, rank_2=traces.HOLDS_GIL), "a stopped rank")
        assert (last[1]["stack"], last[1]["trace"]) == ("", "")


def test_the_newest_operations_of_each_group_are_kept() -> None:
    def entry(number: int, group: str, state: str) -> dict[str, object]:
        return {"record_id": number, "pg_id": 0, "process_group": [group, ""], "state": state}

    done = [entry(i, "0", "completed") for i in range(10)]
    other = [entry(10, "1", "completed")]
    waiting = [entry(i, "0", "scheduled") for i in range(11, 20)]
    kept = sitecustomize._newest([*done, *other, *waiting])
    assert [each["record_id"] for each in kept] == [6, 7, 8, 9, 10, 11, 12, 13, 14, 19]


def test_only_small_regular_files_are_read_as_dumps(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "large").write_bytes(b"x" * (traces._MOST_BYTES + 1))
    for name in ("pipe", "link", "large", "missing"):
        assert traces._content(tmp_path / name) == ""
    assert not traces._ask(str(tmp_path / "pipe"), str(tmp_path / "answer"))

"""Ranks that a rank's command starts below the launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_trainer.launcher.ranks import nested_ranks
from ddp_trainer.launcher.ranks.nested_ranks import NestedRanks

from tests.trainer.support.pods import job, until

RANK = """
import json, os, pathlib, sys, time
names = ("RANK", "WORLD_SIZE")
path = pathlib.Path(sys.argv[1], f"rank-{os.environ['RANK']}-{os.getpid()}")
path.write_text(json.dumps({name: os.environ[name] for name in names}))
while not pathlib.Path(sys.argv[1], "enough").exists():
    time.sleep(0.1)
sys.exit(3)
"""
SPAWNS = """
import multiprocessing, pathlib, socket, sys, time
def work(port):
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.recv(1)
        while not pathlib.Path(sys.argv[1], "enough").exists():
            time.sleep(0.1)
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        context, port = multiprocessing.get_context("spawn"), server.getsockname()[1]
        started = [context.Process(target=work, args=(port,)) for _ in range(2)]
        [each.start() for each in started]
        connections = [server.accept()[0] for _ in started]
        pathlib.Path(sys.argv[1], "ready").touch()
        [each.send(b"x") for each in connections]
        [each.join() for each in started]
    sys.exit(3)
"""
RUNS = """
import os, pathlib, subprocess, sys
folder, environment = sys.argv[1], {**os.environ, "RANK": "5"}
child = subprocess.Popen([sys.executable, folder + "/waits.py", folder], env=environment)
child.wait()
sys.exit(3)
"""
WAITS = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], "ready").touch()
while not pathlib.Path(sys.argv[1], "enough").exists():
    time.sleep(0.1)
"""
LOADS = """
import multiprocessing, pathlib, sys, time
def load(folder):
    pathlib.Path(folder, "ready").touch()
    while not pathlib.Path(folder, "enough").exists():
        time.sleep(0.1)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=load, args=(sys.argv[1],)).start()
    sys.exit(3)
"""


@pytest.mark.nightly
def test_torchrun_in_each_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    line = f"{sys.executable} -m torch.distributed.run rank.py . && true"
    with job(tmp_path, nodes=1, local_world_size=2) as scripts:
        pod = scripts.start(0, "--", "bash", "-c", f"cd {tmp_path}; {line}")
        pod.wait_for_log("ranks of its own")
        until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, "torchrun to start its ranks")
        ranks = [json.loads(each.read_text()) for each in tmp_path.glob("rank-*")]
        assert sorted(each["RANK"] for each in ranks) == ["0", "1"]
        assert {each["WORLD_SIZE"] for each in ranks} == {"2"}
        (tmp_path / "enough").touch()
        assert pod.wait() != 0
        first = pod.message["error"].split("\n")[0]
        assert "'s command starts ranks of its own: 1 so far, such as process " in first
        assert "set spec.nprocPerNode to 1" in first


@pytest.mark.parametrize(
    ("script", "found"), [(RUNS, 1), (SPAWNS, 2), (LOADS, 0)], ids=["RANK", "spawn", "loader"]
)
def test_processes_with_another_rank_or_a_connection_are_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: int
) -> None:
    monkeypatch.setattr(nested_ranks, "LOOKS_AT", (0.0,))
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    with subprocess.Popen(command) as process:
        until((tmp_path / "ready").exists, "the script to start others")
        nested = NestedRanks()
        nested.begin()
        assert nested.look({4: process.pid}, {4: {"RANK": "4"}}) == bool(found)
        assert nested.due_in_seconds is None
        (tmp_path / "enough").touch()
    assert (f"rank 4's command starts ranks of its own: {found} so far" in nested.remark) == bool(
        found
    )

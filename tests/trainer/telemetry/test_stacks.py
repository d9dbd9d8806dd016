"""All ranks of a pod show their stacks on request, for any command."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.telemetry.hook.sitecustomize import stacks_file
from ddp_trainer.telemetry.requests import stacks

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.support.pods import job, until

__all__ = ["server"]

SCRIPT = """
import os, pathlib, sys, threading, time
import sitecustomize

def wait_in_a_thread():
    threading.Event().wait()

def wait_for_the_end():
    (pathlib.Path(sys.argv[1]) / ("ready-" + os.environ["RANK"])).touch()
    while not pathlib.Path(sys.argv[1], "end-" + os.environ["RANK"]).exists():
        time.sleep(0.02)

threading.Thread(target=wait_in_a_thread, daemon=True).start()
pathlib.Path(sys.argv[1], "file-" + os.environ["RANK"]).write_text(os.environ["DDP_STATUS_FILE"])
pathlib.Path(sys.argv[1], "next-" + os.environ["RANK"]).write_text(
    str(getattr(sitecustomize, "OWN", "missing"))
)
wait_for_the_end()
"""
SHELL = """
if [ "$RANK" = 2 ]; then touch "$2/ready-2"; sleep 1000; fi
{python} "$1" "$2"
exit $?
"""


def stacks_of(server: Server) -> dict[int, dict[str, Any]]:
    code, text = server.ask("/stacks", method="POST")
    assert code == 200, text
    return {each["rank"]: each for each in json.loads(text)["ranks"]}


def functions(rank: dict[str, Any]) -> list[str]:
    return [name for thread in rank["threads"] for _, _, name in thread]


def test_any_command_shows_its_stacks(tmp_path: Path, server: Server) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/sitecustomize.py").write_text("OWN = 'the image has one'\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = served_by(server, nodes=1, local_world_size=3)
    settings["extra_environment"]["PYTHONPATH"] = str(tmp_path / "image")
    shell = SHELL.format(python=sys.executable)
    with job(tmp_path, **settings) as scripts:
        script = str(tmp_path / "script.py")
        pod = scripts.start(0, "--", "sh", "-c", shell, "sh", script, str(tmp_path))
        for rank in range(3):
            until((tmp_path / f"ready-{rank}").exists, "the script to start")
        assert (tmp_path / "next-0").read_text() == "the image has one"
        for _ in range(2):  # earlier stacks are not repeated
            found = stacks_of(server)
            for rank in (0, 1):
                names = functions(found[rank])
                assert (names.count("wait_for_the_end"), names.count("wait_in_a_thread")) == (1, 1)
                assert found[rank]["problem"] == ""
            assert found[2]["threads"] == []
            assert found[2]["problem"] == "it is not a Python process, or is still starting"
        assert found[0]["process"] not in pod.child_pids()  # a shell is between
        assert "wait_for_the_end" not in pod.log

        os.kill(found[1]["process"], signal.SIGSTOP)
        found = stacks_of(server)
        assert "wait_for_the_end" in functions(found[0])
        assert found[1]["problem"] == "no answer within 2 s: it is stopped (SIGSTOP)"
        os.kill(found[1]["process"], signal.SIGCONT)
        assert server.ask("/stacks")[0] == 405
        left = Path(stacks_file((tmp_path / "file-0").read_text(), found[0]["process"]))
        assert left.exists()
        (tmp_path / "end-0").touch()
        until(lambda: not left.exists(), "a process that ends to remove its file")
        pod.stop()
        pod.wait()


def test_signal_is_not_sent_to_other_processes(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    Path(stacks_file(str(status), os.getpid())).touch()  # of an earlier process with the same ID
    [answer] = stacks.read_stacks({0: os.getpid()}, status)
    assert answer.problem == "it is not a Python process, or is still starting"


def test_only_the_beginning_of_long_stacks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stacks"
    path.write_text("Thread 0x1 (most recent call first):\n" + '  File "a", line 1 in b\n' * 100)
    monkeypatch.setattr(stacks, "_MOST_BYTES", 100)
    assert stacks._answer(3, 7, path, 2.0).threads == [[("a", "1", "b")] * 2]

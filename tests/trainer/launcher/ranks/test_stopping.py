"""SIGTERM to a command that is not the training process itself."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.trainer.support.pods import job, until

SAVES = """
import pathlib, signal, sys, time
folder, got = pathlib.Path(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
(folder / "ready").touch()
while not got:
    time.sleep(0.05)
time.sleep(0.5)
print("saves now, told", len(got), flush=True)  # a reader that is gone would end it here
(folder / "saved").write_text(str(len(got)))
"""
STARTS = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""
SPAWNS = """
import multiprocessing, socket, sys, runpy
def work(folder, port):
    with socket.create_connection(("127.0.0.1", port)):
        sys.argv[1:] = [folder]
        runpy.run_path(folder + "/saves.py")
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=work, args=(sys.argv[1], server.getsockname()[1]))
        child.start()
        child.join()
"""
LOADS = """
import multiprocessing, pathlib, signal, sys, time
def load(folder):
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(folder, "worker-was-told").touch())
    pathlib.Path(folder, "ready").touch()
    while True:
        time.sleep(0.05)
if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[2]).Process(target=load, args=(sys.argv[1],)).start()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    programs = {"saves": SAVES, "starts": STARTS, "spawns": SPAWNS, "loads": LOADS}
    for name, text in programs.items():
        tmp_path.joinpath(f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "{python} saves.py . | tee log",
        "{python} saves.py . > log; touch next",
        "({python} saves.py . | cat) 2>&1 | tee log; touch next",
        "trap 'touch trapped' TERM; {python} saves.py .; true",
        "sh -c '{python} saves.py . ; true'; true",
        "{python} starts.py saves.py . | tee log",
        "{python} spawns.py . | tee log",
    ],
)
def test_what_a_shell_started_saves_when_it_is_told_to_stop(folder: Path, line: str) -> None:
    command = f"cd {folder}; {line.format(python=sys.executable)}"
    with job(folder, nodes=1) as scripts:
        pod = scripts.start(0, "--", "bash", "-c", command)
        until((folder / "ready").exists, "the script to start")
        pod.stop()
        pod.wait()
        assert (folder / "saved").read_text() == "1"
        assert not (folder / "next").exists()
        if "tee" in line:
            assert "saves now, told 1" in (folder / "log").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_helpers_of_a_process_that_handles_no_signal_do_not_make_it_fail(
    folder: Path, method: str
) -> None:
    with job(folder, nodes=1) as scripts:
        pod = scripts.start(0, "--", "python", str(folder / "loads.py"), str(folder), method)
        until((folder / "ready").exists, "the worker to start")
        pod.stop()
        assert pod.wait() == 128 + signal.SIGTERM


def test_a_program_that_starts_the_training_is_told_after_it(folder: Path) -> None:
    with job(folder, nodes=1) as scripts:
        programs = [str(folder / "starts.py"), str(folder / "saves.py"), str(folder)]
        pod = scripts.start(0, "--no-preload", "--", "python", *programs)
        until((folder / "ready").exists, "the script to start")
        pod.stop()
        assert pod.wait() in (0, 128 + signal.SIGTERM)
        assert (folder / "saved").read_text() == "1"

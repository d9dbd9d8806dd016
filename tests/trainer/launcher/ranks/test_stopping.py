"""SIGTERM to a command that starts the training process."""

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
print("saves after signals:", len(got), flush=True)  # fails without a reader
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
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(folder, "worker-got-it").touch())
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
        "({python} saves.py . | cat) 2>&1 | tee log; touch next",
        "{python} spawns.py . | tee log",
        *(
            pytest.param(rare, marks=pytest.mark.nightly)
            for rare in (
                "{python} saves.py . > log; touch next",
                "trap 'touch trapped' TERM; {python} saves.py .; true",
                "sh -c '{python} saves.py . ; true'; true",
                "{python} starts.py saves.py . | tee log",
            )
        ),
    ],
)
def test_training_below_a_shell_saves_after_sigterm(folder: Path, line: str) -> None:
    command = f"cd {folder}; {line.format(python=sys.executable)}"
    with job(folder, nodes=1) as scripts:
        pod = scripts.start(0, "--", "bash", "-c", command)
        until((folder / "ready").exists, "the script to start")
        pod.stop()
        pod.wait()
        assert (folder / "saved").read_text() == "1"
        assert not (folder / "next").exists()
        if "tee" in line:
            assert "saves after signals: 1" in (folder / "log").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_helper_that_ignores_sigterm_does_not_block_its_rank(folder: Path, method: str) -> None:
    with job(folder, nodes=1) as scripts:
        pod = scripts.start(0, "--", "python", str(folder / "loads.py"), str(folder), method)
        until((folder / "ready").exists, "the worker to start")
        pod.stop()
        assert pod.wait() == 128 + signal.SIGTERM


def test_program_that_starts_the_training_gets_sigterm_after_it(folder: Path) -> None:
    with job(folder, nodes=1) as scripts:
        programs = [str(folder / "starts.py"), str(folder / "saves.py"), str(folder)]
        pod = scripts.start(0, "--no-preload", "--", "python", *programs)
        until((folder / "ready").exists, "the script to start")
        pod.stop()
        assert pod.wait() in (0, 128 + signal.SIGTERM)
        assert (folder / "saved").read_text() == "1"

"""The output of ranks reaches the pod's log completely and in whole lines, however a rank ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.trainer.support import pods
from tests.trainer.support.pods import DEADLINE_SECONDS, contract, until
from tests.trainer.support.stub_torch import stub_torch

job = partial(pods.job, imports_torch=True)
"""A job of pods that start as in a container: `COMMAND` needs no import of torch."""
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""As the operator sets it: `print` writes each argument separately."""
COMMAND = ("--no-preload", "--", sys.executable, "-c")
MEBIBYTE = 1 << 20

LINES = """
import os, sys
for number in range(500):
    print("rank", os.environ["RANK"], "line", number)
    if number % 5 == 0:
        print("error", "of", "rank", os.environ["RANK"], number, file=sys.stderr)
"""


def launch(
    program: str, *arguments: str, ranks: int = 2, preload: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as every rank; `preload`: in a fork, from a file in that folder."""
    command = [*COMMAND, program]
    if preload is not None:
        file = preload / "program.py"
        file.write_text(program)
        command = ["--", sys.executable, str(file)]
        variables |= stub_torch(preload)
    return subprocess.run(
        [sys.executable, "-m", "ddp_trainer.launch", *command, *arguments],
        env={**os.environ, **contract(local_world_size=ranks), **UNBUFFERED, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("forked", [False, True])
def test_lines_of_several_ranks_stay_whole(forked: bool, tmp_path: Path) -> None:
    ended = launch(LINES, ranks=4, preload=tmp_path if forked else None)
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout.splitlines()
    assert len(printed) == 4 * 500
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error ")]
    for rank in range(4):
        own = [line for line in printed if line.startswith(f"rank {rank} ")]
        assert own == [f"rank {rank} line {number}" for number in range(500)]
        own = [line for line in errors if line.startswith(f"error of rank {rank} ")]
        assert own == [f"error of rank {rank} {number}" for number in range(0, 500, 5)]


def test_stdout_and_stderr_in_one_file_keep_their_order(tmp_path: Path) -> None:
    program = """
import sys
for number in range(200):
    print("line", number, file=sys.stderr if number % 3 else sys.stdout)
"""
    with job(tmp_path, nodes=1, extra_environment=UNBUFFERED) as scripts:
        pod = scripts.start(0, *COMMAND, program)
        assert pod.wait() == 0
        assert pod.log.splitlines() == [f"line {number}" for number in range(200)]


def test_half_a_line_of_a_killed_rank_is_ended(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys
rank = os.environ["RANK"]
def stop(*_):
    print("rank", rank, "stops")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("a line of", rank, end="" if rank == "1" else "\\n")
pathlib.Path(sys.argv[1], rank).write_text(str(os.getpid()))
while True:
    signal.pause()
"""
    with job(tmp_path, nodes=1, local_world_size=2, extra_environment=UNBUFFERED) as scripts:
        pod = scripts.start(0, *COMMAND, program, str(tmp_path))
        until(lambda: all((tmp_path / rank).exists() for rank in "01"), "both ranks to print")
        until(lambda: bool((tmp_path / "1").read_text()), "the process ID of rank 1")
        os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
        assert pod.wait() == 128 + signal.SIGKILL
        log = pod.log
    *lines, last = log.splitlines()
    assert sorted(lines) == ["a line of 0", "a line of 1", "rank 0 stops"]
    assert "was killed (SIGKILL)" in last


def test_a_progress_bar_is_shown_while_it_is_drawn(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys, time
def wait_for(name):
    while not pathlib.Path(sys.argv[1], name).exists():
        time.sleep(0.01)
if os.environ["RANK"] == "0":
    print("\\r 10%", end="")
    wait_for("line")
    print("\\r100%", end="")
if os.environ["RANK"] == "1":
    wait_for("bar")
    print("a", "line")
    pathlib.Path(sys.argv[1], "printed").touch()
"""
    with job(tmp_path, nodes=1, local_world_size=2, extra_environment=UNBUFFERED) as scripts:
        pod = scripts.start(0, *COMMAND, program, str(tmp_path))
        pod.wait_for_log("10%")
        (tmp_path / "bar").touch()
        pod.wait_for_log("a line")
        (tmp_path / "line").touch()
        assert pod.wait() == 0
        assert pod._log_path.read_bytes() == b"\r 10%\na line\n\r100%\n"


@pytest.mark.parametrize("child", [["sleep", "1000"], ["yes"]], ids=" ".join)
def test_children_that_outlive_their_rank_do_not_block_the_pod(
    child: list[str], tmp_path: Path
) -> None:
    program = f"""
import subprocess
print("last", "words")
child = subprocess.Popen({child!r}, start_new_session=True)
print("pid", child.pid)
"""
    with job(tmp_path, nodes=1, extra_environment=UNBUFFERED) as scripts:
        pod = scripts.start(0, *COMMAND, program)
        assert pod.wait() == 0
        text = pod.log
    assert "last words" in text.splitlines()
    if child[0] == "sleep":
        os.kill(int(re.findall(r"^pid (\d+)$", text, re.M)[0]), signal.SIGKILL)


def test_fast_output_takes_no_memory() -> None:
    program = "import os\nfor _ in range(64):\n    os.write(1, b'x' * 1023 * 1024 + b'\\n' * 1024)"
    with subprocess.Popen(
        [sys.executable, "-m", "ddp_trainer.launch", *COMMAND, program],
        env={**os.environ, **contract(local_world_size=2)},
        stdout=subprocess.PIPE,
    ) as launcher:
        assert launcher.stdout is not None
        size = len(launcher.stdout.read(1024))
        before = _peak_bytes(launcher.pid)
        while text := launcher.stdout.read(1024):  # slower than it is printed
            size += len(text)
            peak = _peak_bytes(launcher.pid) if size % (8 * MEBIBYTE) < 1024 else 0
            assert peak <= before + 4 * MEBIBYTE
    assert launcher.returncode == 0
    assert size >= 2 * 64 * MEBIBYTE


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(peak[1]) * 1024 if peak else 0


def test_log_without_a_reader_does_not_end_the_ranks() -> None:
    program = "import os, sys\nfor _ in range(1000):\n    print('line')\nsys.exit(3)"
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "ddp_trainer.launch", *COMMAND, program],
        env={**os.environ, **contract(), **UNBUFFERED},
        stdout=write,
    ) as launcher:
        os.close(write)
        os.close(read)
        assert launcher.wait(DEADLINE_SECONDS) == 3


def test_launcher_logs_after_the_last_line_of_a_rank(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1, extra_environment=UNBUFFERED) as scripts:
        pod = scripts.start(0, *COMMAND, "import sys; print('last', 'words', end=''); sys.exit(7)")
        assert pod.wait() == 7
        first, second = pod.log.splitlines()
    assert first == "last words"
    assert second.endswith("[launcher 0] exit code 7: rank 0 ended with exit code 7")


def test_log_prefix_puts_the_rank_before_each_line() -> None:
    program = """
import os, sys
print("a", "line")
print("[rank%s]: an error of torch" % os.environ["RANK"], file=sys.stderr)
"""
    ended = launch(program, DDP_LOG_PREFIX="rank")
    assert sorted(ended.stdout.splitlines()) == ["[rank0]: a line", "[rank1]: a line"]
    assert sorted(ended.stderr.splitlines()) == [f"[rank{n}]: an error of torch" for n in (0, 1)]
    refused = launch(program, DDP_LOG_PREFIX="yes")
    assert refused.returncode == 64
    assert "DDP_LOG_PREFIX is 'yes': set it to rank" in refused.stdout


@pytest.mark.parametrize(("prefix", "terminal"), [("", True), ("rank", False)])
def test_ranks_write_to_the_terminal_unless_lines_have_a_prefix(
    prefix: str, terminal: bool
) -> None:
    ours, theirs = pty.openpty()
    program = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())"
    with subprocess.Popen(
        [sys.executable, "-m", "ddp_trainer.launch", *COMMAND, program],
        env={**os.environ, **contract(), "DDP_LOG_PREFIX": prefix},
        stdout=theirs,
        stderr=theirs,
    ) as launcher:
        os.close(theirs)
        assert launcher.wait(DEADLINE_SECONDS) == 0
    assert f"{terminal} {terminal}" in os.read(ours, 65536).decode()
    os.close(ours)

"""The command as users call it: a process, watched through its output."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

DEADLINE_SECONDS = 240.0
"""For one phase of a run on a busy machine."""


class Command:
    """A run of `python -m ddp_client.local` and its output."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.output = ""

    async def read_until(self, text: str) -> None:
        """Read until `text` has been printed."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.output:
                line = await self._stdout.readline()
                assert line, f"ended without {text!r}:\n{self.output}"
                self.output += line.decode()

    async def wait(self) -> int:
        """Read to the end and return the exit code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            self.output += (await self._stdout.read()).decode()
            return await self.process.wait()

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout


@asynccontextmanager
async def running(file: Path, workdir: Path, *arguments: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ddp_client.local",
        str(file),
        "--workdir",
        str(workdir),
        *arguments,
        stdout=PIPE,
        stderr=STDOUT,
    )
    command = Command(process)
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def processes_of(workdir: Path) -> list[str]:
    """Return the command lines of all processes of pods in this directory."""
    return list(_read_of_each(workdir, "cmdline").values())


def kill_rank(workdir: Path, rank: int) -> None:
    """Kill the process of a rank; the launcher of its pod lives on."""
    names = _read_of_each(workdir, "comm").items()
    [process] = [process for process, name in names if name == f"ddp-rank-{rank}\n"]
    os.kill(process, signal.SIGKILL)


def _read_of_each(workdir: Path, file: str) -> dict[int, str]:
    """Return a file in /proc of each process of pods in this directory, by the process's ID."""
    mark = str(workdir).encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / file).read_text()
        except OSError:
            continue  # it has ended, or belongs to another user
    return found

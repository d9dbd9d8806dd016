"""The command as users call it: a process, watched through its output."""

import asyncio
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
    mark = str(workdir).encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # it has ended, or belongs to another user
    return found

"""One container's process: starts it, keeps its output, stops and kills it."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Self

from ddp_client.local.machine import pod_init
from ddp_client.local.machine.container import ContainerProcess

_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_DRAIN_SECONDS = 5.0
"""How long output may still arrive after the end, when no process of the pod is left to
write it."""


class PodProcess:
    """The processes of one pod, from start to end."""

    def __init__(self, process: Process, output: asyncio.Task[None]) -> None:
        self._process = process
        self._output = output

    @classmethod
    async def start(
        cls, what: ContainerProcess, *, log: Path, on_line: Callable[[str], None]
    ) -> Self:
        """Start the process. Its output goes to the log file and, line by line, to `on_line`.

        Raises:
            OSError: no process can start, or the log cannot be written.
        """
        file = FileIO(log, "a")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                pod_init.__file__,
                str(os.getpid()),
                *what.command,
                env=what.environment,
                cwd=what.working_directory,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                # Ctrl-C in the terminal is for the run itself; pods then receive SIGTERM.
                start_new_session=True,
            )
        except OSError:
            file.close()
            raise
        assert process.stdout is not None
        output = asyncio.create_task(_copy(process.stdout, file, on_line))
        return cls(process, output)

    @property
    def pid(self) -> int:
        """ID of the process above all others of the pod."""
        return self._process.pid

    def stop(self) -> None:
        """Ask the process to end, with SIGTERM."""
        self._signal(SIGTERM)

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        self._signal(pod_init.KILL_POD)

    async def wait(self) -> int:
        """Wait for the end and the last output; return the exit code."""
        code = await self._process.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._output, _DRAIN_SECONDS)
        return code if code >= 0 else 128 - code

    def _signal(self, number: Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


async def _copy(stream: asyncio.StreamReader, file: FileIO, on_line: Callable[[str], None]) -> None:
    with file:
        rest, is_full = b"", False
        while chunk := await stream.read(_CHUNK_BYTES):
            try:
                if not is_full:
                    file.write(chunk)
            except OSError as error:
                is_full = True  # a pipe that nobody reads would stop the pod
                on_line(f"the log file ends here: {error.strerror}")
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                on_line(_text(line))
        if rest:
            on_line(_text(rest))


def _text(line: bytes) -> str:
    # If a progress bar rewrites its line, keep its last state.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]

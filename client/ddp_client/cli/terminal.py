"""Connect the local terminal to a program in a pod."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from ddp_client.remote.channels import Program, Stream

_PIECE = 16 * 1024


async def join(program: Program, *, stdin: bool, terminal: bool) -> int:
    """Copy input and output until the program ends, and return its exit code.

    Raises:
        ClusterError: the connection broke, or the exit code is unknown.
    """
    with _raw() if terminal else contextlib.nullcontext():
        typing = asyncio.create_task(_type(program)) if stdin else None
        resizing = asyncio.create_task(_resize(program)) if terminal else None
        try:
            async with contextlib.aclosing(program.output()) as output:
                async for stream, content in output:
                    into = sys.stderr if stream is Stream.STDERR else sys.stdout
                    into.buffer.write(content)
                    into.buffer.flush()
        finally:
            tasks = [task for task in (typing, resizing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert program.exit_code is not None  # or `output` has raised
    return program.exit_code


async def _type(program: Program) -> None:
    """Copy standard input to the program.

    There is no reading thread, because a blocked read cannot be cancelled.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    descriptor = sys.stdin.fileno()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a file, which is always ready
        while content := os.read(descriptor, _PIECE):
            await program.write(content)
        await program.end_input()
        return
    try:
        while True:
            await ready.wait()
            ready.clear()
            content = os.read(descriptor, _PIECE)
            if not content:
                await program.end_input()
                return
            await program.write(content)
    finally:
        loop.remove_reader(descriptor)


async def _resize(program: Program) -> None:
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    changed.set()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            size = shutil.get_terminal_size()
            await program.resize(size.columns, size.lines)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Send every key to the pod, also Ctrl-C."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

"""Runs a user's script as the ranks of a pod, forked from a process that has imported torch.

    python [-u] -m ddp_trainer.launcher.ranks.scripts SOCKET (FILE | -m MODULE) [arguments]

Importing torch is nine tenths of a script's start. Here the ranks of a pod share one import, and a
restarted rank needs none. For the script everything is as in a new Python process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import os
import re
import runpy
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from ddp_trainer.launcher.ranks.forkserver import fork_ranks
from ddp_trainer.telemetry.hook.sitecustomize import (
    answer_with_stacks,
    answer_with_traces,
    keep_checkpoints,
    wait_for_gloo_at_exit,
)

_PRELOADED: Final = ("torch", "torch._dynamo", "torch.distributed")
_OPTIONS: Final = frozenset({"-u", "-B", "-O", "-OO"})
"""Options of Python that have the same effect on the forking process as on a script."""
_NOT_ITS_OWN: Final = (__file__, runpy.run_module.__code__.co_filename)
_MODULE: Final = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class Script:
    """A command that runs this Python, and so can run in a fork of it."""

    options: Sequence[str]
    """Options of Python itself."""
    program: Sequence[str]
    """FILE or -m MODULE, and its arguments."""

    @classmethod
    def of(cls, command: Sequence[str], env: Mapping[str, str]) -> Script | None:
        """Return the script of a command; None if the command must run unchanged.

        That is the case for another program, another Python, options that do not work in a fork,
        and a missing file, for which Python itself has the best error.
        """
        python, *rest = command
        found = shutil.which(python, path=env.get("PATH", os.defpath))
        if found is None or not _is_this_python(found):
            return None
        at = next((i for i, word in enumerate(rest) if word not in _OPTIONS), len(rest))
        options, program = rest[:at], rest[at:]
        match program:
            case ["-m", module, *_] if _MODULE.fullmatch(module):
                return cls(options, program)
            case [file, *_] if not file.startswith("-") and os.path.isfile(file):
                return cls(options, program)
        return None


def _is_this_python(path: str) -> bool:
    """Return True if it has the same packages.

    The Python of a virtual environment is a link to one with other packages.
    """
    this = os.path.abspath(sys.executable)
    there = os.path.abspath(path)
    same_folder = os.path.dirname(there) == os.path.dirname(this)
    return same_folder and os.path.realpath(there) == os.path.realpath(this)


def serve(channel: socket.socket, program: Sequence[str]) -> None:
    """Fork a rank for each request, and run the program in it."""
    # Modules in the launcher's working directory belong to the script, not to torch.
    here = [] if sys.flags.safe_path else [sys.path.pop(0)]
    gc.disable()  # as in `forkserver`
    for module in _PRELOADED:
        # A script without torch must run, too. If torch is broken, the script's error says it best.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    if fork_ranks(channel):
        # Let Python free imported modules at exit, as in a new process. Otherwise Triton's bindings
        # print more about objects that are not freed than a report has room for.
        atexit.register(gc.unfreeze)
        wait_for_gloo_at_exit()
        answer_with_stacks()
        answer_with_traces()
        keep_checkpoints()
        _seed_generators()
        sys.path[:0] = here
        run(program)


def _seed_generators() -> None:
    """Seed the generators of numpy and torch again, or all ranks draw the same numbers.

    Python's `random` does so itself in a fork; CUDA's generators are created in the rank.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (generator := getattr(sys.modules.get("torch"), "default_generator", None)) is not None:
        generator.seed()


def run(program: Sequence[str]) -> None:
    """Run a program as `python` with these arguments does.

    Raises:
        SystemExit: it ended with its own exit code, or with an error that was printed.
    """
    try:
        if program[0] == "-m":
            sys.argv = list(program[1:])
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            _run_file(program)
    except Exception as error:
        # Leave our own frames out of the traceback.
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename in _NOT_ITS_OWN:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.exit(1)


def _run_file(program: Sequence[str]) -> None:
    file = os.path.abspath(program[0])
    sys.argv = list(program)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins, __cached__=None)
    # Processes that the script starts look up its functions there.
    sys.modules["__main__"] = main
    with io.open_code(file) as text:
        code = compile(text.read(), file, "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

"""Runs a user's own script as the ranks of a pod, forked from a process that has torch imported.

    python [-u] -m ddp_trainer.launcher.ranks.scripts SOCKET (FILE | -m MODULE) [arguments]

Nine tenths of what a script takes to start are that import; here a pod's ranks share one, and one
that is started again finds it done. To the script all is as if Python had been started for it.
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
from ddp_trainer.telemetry.hook.sitecustomize import answer_with_stacks, wait_for_gloo_at_exit

_PRELOADED: Final = ("torch", "torch._dynamo", "torch.distributed")
_OPTIONS: Final = frozenset({"-u", "-B", "-O", "-OO"})
"""Of Python's own: those that mean to the process that forks what they mean to a script."""
_NOT_ITS_OWN: Final = (__file__, runpy.run_module.__code__.co_filename)
_MODULE: Final = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class Script:
    """A command that is this Python's, and so can be run in a fork of it."""

    options: Sequence[str]
    """Python's own."""
    program: Sequence[str]
    """FILE or -m MODULE, and its arguments."""

    @classmethod
    def of(cls, command: Sequence[str], env: Mapping[str, str]) -> Script | None:
        """None for a command that has to be run as it is: another program, another Python, options
        that a fork cannot have, or a file that is not there, of which Python says so best.
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
    """Whether it has the same packages: a virtual environment's is a link to one with others."""
    this = os.path.abspath(sys.executable)
    there = os.path.abspath(path)
    same_folder = os.path.dirname(there) == os.path.dirname(this)
    return same_folder and os.path.realpath(there) == os.path.realpath(this)


def serve(channel: socket.socket, program: Sequence[str]) -> None:
    """Fork a rank for each request, and run the program in it."""
    # What lies in the folder that the launcher was started in is not torch's, but the script's.
    here = [] if sys.flags.safe_path else [sys.path.pop(0)]
    for module in _PRELOADED:
        # A script without torch runs as well, and one whose torch is broken says so best itself.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    if fork_ranks(channel):
        # What was imported before the fork is freed when Python ends, as in a Python of its own.
        # Triton's bindings print more than a report has room for about what is not freed.
        atexit.register(gc.unfreeze)
        wait_for_gloo_at_exit()
        answer_with_stacks()
        _seed_generators()
        sys.path[:0] = here
        run(program)


def _seed_generators() -> None:
    """Seed anew what an import has seeded, as in a Python of its own, or all ranks draw the same.

    Python's `random` does so itself in a fork; CUDA's generators are made in the rank.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (generator := getattr(sys.modules.get("torch"), "default_generator", None)) is not None:
        generator.seed()


def run(program: Sequence[str]) -> None:
    """Run a program as Python runs it that was started with these words.

    Raises:
        SystemExit: it has ended with an exit code of its own, or by an error, which was printed.
    """
    try:
        if program[0] == "-m":
            sys.argv = list(program[1:])
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            _run_file(program)
    except Exception as error:
        # Its traceback begins with the script's own lines.
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
    # Processes that it starts find its functions there.
    sys.modules["__main__"] = main
    with io.open_code(file) as text:
        code = compile(text.read(), file, "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

"""Makes any Python process under the launcher able to say where it stands.

Python imports the first module of this name when it starts. It may be another Python than the
launcher's: nothing but the standard library is needed here, and whatever goes wrong goes unnoticed.
A `sitecustomize` of the image comes after this one.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import signal
import sys

SIGNAL = getattr(signal, "SIGRTMIN", signal.NSIG) + 11
"""One that programs leave alone, where there are such; SIGUSR1 is many a script's own."""
STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"


def stacks_file(status_file: str, pid: int) -> str:
    """Where a process writes its stacks: beside the pod's status."""
    folder, name = os.path.split(status_file)
    return os.path.join(folder, f".{name}.stacks-{pid}")


def answer_with_stacks() -> None:
    """From here on the signal makes this process write the stacks of all its threads to its file.

    The interpreter's own handler does so, which needs nothing of the thread that hangs. Processes
    that are forked from this one have no file of their own, and are not asked.
    """
    status_file = os.environ.get(STATUS_FILE_VARIABLE)
    if not status_file:
        return
    try:
        path = stacks_file(status_file, os.getpid())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGNAL, file=fd, all_threads=True)
        atexit.register(_remove, path, os.getpid())
    except (OSError, RuntimeError, ValueError):
        return  # what cannot be told is no reason to end a training


def _remove(path: str, pid: int) -> None:
    """A script may start a million processes; one that is forked from this one leaves its file."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _run_the_next() -> None:
    """Run the image's own `sitecustomize`, which this one hides."""
    here, this = os.path.dirname(os.path.abspath(__file__)), sys.modules.pop(__name__)
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != here]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    answer_with_stacks()
    _run_the_next()

"""Makes any Python process under the launcher able to say where it stands, and end in order.

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
import time

SIGNAL = getattr(signal, "SIGRTMIN", signal.NSIG) + 11
"""One that programs leave alone, where there are such; SIGUSR1 is many a script's own."""
STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"
_GLOO_THREAD = "pt_gloo"
"""How torch's gloo names the threads that run its collectives."""
_GLOO_SECONDS = 5.0
_LOOK_SECONDS = 0.002


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


def wait_for_gloo_at_exit() -> None:
    """Before Python ends, let gloo's threads release the collectives that they have run.

    A collective that DDP starts holds a Python object. The thread that ran it releases the object,
    which takes Python's lock. If Python ends first, its lock ends that thread, and C++ aborts the
    process (from Python 3.14 on the thread hangs). To destroy the process group is not enough: a
    DDP module keeps it and its threads alive.

    The first that is registered is the last that Python calls.
    """
    atexit.register(_wait_for_gloo)


def _wait_for_gloo() -> None:
    with contextlib.suppress(OSError):  # no /proc: nothing can be seen, and nothing is lost
        before, until = None, time.monotonic() + _GLOO_SECONDS
        while (now := _gloo_threads()) and not (now == before and _all_sleep(now)):
            if time.monotonic() > until:
                said = f"gloo's threads still work {_GLOO_SECONDS:g} s after the end of the script"
                print(said, file=sys.stderr)
                return
            before = now
            time.sleep(_LOOK_SECONDS)  # lets go of Python's lock


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """Thread ID → state and number of waits. One that waited for Python's lock at the last look has
    run since: it waits no more, or once more.
    """
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
            if fields["Name"].strip().startswith(_GLOO_THREAD):
                found[thread] = fields["State"].split()[0], fields["voluntary_ctxt_switches"]
    return found


def _all_sleep(threads: dict[str, tuple[str, str]]) -> bool:
    return all(state == "S" for state, _ in threads.values())


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
    wait_for_gloo_at_exit()
    answer_with_stacks()
    _run_the_next()

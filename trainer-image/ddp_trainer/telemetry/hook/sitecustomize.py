"""Lets any Python process below the launcher show its stacks, and end without a crash.

Python imports the first module of this name when it starts. It may be another Python than the
launcher's. So this module needs only the standard library, and hides its errors. A `sitecustomize`
of the image runs after this one.
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
"""A realtime signal that programs rarely use; many scripts use SIGUSR1 themselves."""
STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"
_GLOO_THREAD = "pt_gloo"
"""Name of the threads in which torch's gloo runs collectives."""
_GLOO_SECONDS = 5.0
_LOOK_SECONDS = 0.002


def stacks_file(status_file: str, pid: int) -> str:
    """Return the file for the stacks of a process, beside the pod's status file."""
    folder, name = os.path.split(status_file)
    return os.path.join(folder, f".{name}.stacks-{pid}")


def answer_with_stacks() -> None:
    """Make this process write the stacks of all threads to its file when it gets the signal.

    The interpreter's own handler writes them, so it works even if a thread hangs. Processes that
    are forked from this one have no file, and do not get the signal.
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
        return  # without stacks, training can continue


def _remove(path: str, pid: int) -> None:
    """Remove the file of this process; a process forked from it must leave the file alone.

    A script may start a million processes.
    """
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.unlink(path)


def wait_for_gloo_at_exit() -> None:
    """Before Python ends, wait until gloo's threads have released their collectives.

    A collective that DDP starts holds a Python object. The thread that ran it releases the object,
    and needs Python's lock for that. If Python ends first, the lock ends that thread, and C++
    aborts the process (from Python 3.14 on, the thread hangs). Destroying the process group is not
    enough: a DDP module keeps it and its threads alive.

    Register it first: Python calls the first registered function last.
    """
    atexit.register(_wait_for_gloo)


def _wait_for_gloo() -> None:
    with contextlib.suppress(OSError):  # without /proc, skip the wait
        before, until = None, time.monotonic() + _GLOO_SECONDS
        while (now := _gloo_threads()) and not (now == before and _all_sleep(now)):
            if time.monotonic() > until:
                said = f"gloo's threads still work {_GLOO_SECONDS:g} s after the end of the script"
                print(said, file=sys.stderr)
                return
            before = now
            time.sleep(_LOOK_SECONDS)  # releases Python's lock


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """Return state and number of waits by thread ID.

    A thread that waited for Python's lock at the last check has run since. So it no longer waits,
    or it has one more wait.
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

"""Lets any Python process below the launcher show its stacks and collectives, and end without a
crash. A rank's process also keeps its checkpoints in memory, if the job wants that.

Python imports the first module of this name when it starts. It may be another Python than the
launcher's. So this module needs only the standard library, and hides its errors. A `sitecustomize`
of the image runs after this one.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time

SIGNAL = getattr(signal, "SIGRTMIN", signal.NSIG) + 11
"""A realtime signal that programs rarely use; many scripts use SIGUSR1 themselves."""
STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"
_TORCH_BINDINGS = "torch._C._distributed_c10d"
_TORCH_GROUPS = "torch.distributed.distributed_c10d"
_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch that return the records of its flight recorder: of NCCL, of other backends."""
_TRACES_THREAD = "ddp: shows the last collectives"
_EXIT_SECONDS = 2.0
_GLOO_THREAD = "pt_gloo"
"""Name of the threads in which torch's gloo runs collectives."""
_GLOO_SECONDS = 5.0
_LOOK_SECONDS = 0.002
_MEMORY_VARIABLES = ("DDP_MEMORY_DIR", "DDP_CHECKPOINTS_IN_MEMORY")
"""As in `memory.volume` and `memory.dcp_files.folders`."""


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


def trace_files(status_file: str, pid: int) -> tuple[str, str]:
    """Return the pipe by which to ask a process for its collectives, and the file for them."""
    folder, name = os.path.split(status_file)
    path = os.path.join(folder, f".{name}.trace-{pid}")
    return path, path + ".json"


def answer_with_traces() -> None:
    """Make a thread of this process write the last collectives to its file on request.

    The thread waits until the launcher opens its pipe. Processes that are forked from this one have
    neither the thread nor a descriptor.
    """
    status_file = os.environ.get(STATUS_FILE_VARIABLE)
    if not status_file or any(each.name == _TRACES_THREAD for each in threading.enumerate()):
        return
    pipe, path = trace_files(status_file, os.getpid())
    busy = threading.Lock()
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pipe)  # of an earlier process with the same ID
        os.mkfifo(pipe, 0o600)
        thread = threading.Thread(
            target=_answer_requests, args=(pipe, path, busy), name=_TRACES_THREAD, daemon=True
        )
        thread.start()
        atexit.register(_stop_answering, pipe, path, busy, os.getpid())
    except (OSError, RuntimeError):
        return  # without traces, training can continue


def _answer_requests(pipe: str, path: str, busy: threading.Lock) -> None:
    while True:
        try:
            # Waits here, outside of Python's lock, until the launcher opens the other end.
            os.close(os.open(pipe, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return
        with busy:
            text = ""  # without a dump, an answer still shows that Python code runs
            with contextlib.suppress(Exception):
                text = _recent_collectives()
            with contextlib.suppress(OSError):
                with open(path + ".new", "w") as file:
                    file.write(text)
                os.replace(path + ".new", path)


def _recent_collectives() -> str:
    """Return the flight recorder's dump as JSON; empty if this process has none."""
    bindings = sys.modules.get(_TORCH_BINDINGS)
    for recorder in _RECORDERS:
        if hasattr(bindings, recorder):
            dump = json.loads(getattr(bindings, recorder)())
            if dump.get("entries"):
                dump["pg_config"] = dict(_groups(), **dump.get("pg_config") or {})
                return json.dumps(dump, separators=(",", ":"))
    return ""


def _groups() -> dict[str, dict[str, str]]:
    """Return the process groups with their members, which gloo does not record."""
    found = {}
    with contextlib.suppress(Exception):  # a release of torch that keeps them elsewhere
        world = sys.modules[_TORCH_GROUPS]._world
        for group, name in list(world.pg_names.items()):
            ranks = str(sorted(world.pg_group_ranks[group]))
            found[name] = {"name": name, "desc": group.group_desc, "ranks": ranks}
    return found


def _stop_answering(pipe: str, path: str, busy: threading.Lock, pid: int) -> None:
    """Remove the files of this process, and keep the thread out of torch while Python ends."""
    if os.getpid() == pid:
        busy.acquire(timeout=_EXIT_SECONDS)
        for each in (pipe, path):
            with contextlib.suppress(OSError):
                os.unlink(each)


class _AnswerWithTorch:
    """Starts the thread for traces in a rank that imports torch.distributed.

    Python asks it for each new module, and it finds none. The process that forks ranks has no rank,
    and must have no thread.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch.distributed":
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            if "RANK" in os.environ:
                answer_with_traces()


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


def keep_checkpoints() -> None:
    """Prepare a rank of a job that keeps its checkpoints in memory; see `memory.dcp_files`.

    Raises:
        SystemExit: the rank must not start.
    """
    if "RANK" not in os.environ or not all(map(os.environ.get, _MEMORY_VARIABLES)):
        return
    try:
        begin = importlib.import_module("ddp_trainer.memory.dcp_files.start").begin
    except Exception as error:  # a Python too old for the launcher's modules
        print(f"ddp_trainer: no checkpoints are kept in memory: {error}", file=sys.stderr)
        return
    begin(os.environ)


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
    sys.meta_path.insert(0, _AnswerWithTorch())
    _run_the_next()
    try:
        keep_checkpoints()  # last: the image's `sitecustomize` may say where modules are
    except SystemExit as ended:  # Python would take it for a broken `sitecustomize`
        sys.stderr.flush()
        os._exit(int(ended.code or 0))

"""Faults of a rank in the middle of a step, and what must happen after each.

Most are on the list that NVIDIA's Resiliency Extension injects into trainings (`inject_fault.py`).
`test_faults` injects them. This writes the table in docs/concepts/faults.md:

    python -m tests.trainer.support.faults
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/concepts/faults.md"
_BEGIN, _END = "<!-- written by `make generate` -->\n\n", "\n<!-- end -->"


class Outcome(Enum):
    """The result for a rank that has joined its job; the other ranks keep their state."""

    AGAIN = "restarted at once"
    KILLED = "restarted after `--heartbeat-timeout-seconds`"
    NOTHING = "training continues"
    GIVEN_UP = "not restarted; the pod ends with exit code 75"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault; `code`: the exit code of the pod where the script uses torch alone."""

    what: str
    action: Callable[[], object]
    joined: Outcome
    """With the bundled trainer, or a script with `ddp_trainer.join`."""
    code: int
    is_seen_by_others: bool = False
    """Another rank of a plain script fails in a collective, not this one."""

    @property
    def plain(self) -> str:
        """Return what happens to a script that uses torch alone, in words."""
        if self.code == 0:
            return Outcome.NOTHING.value
        why = ", from another rank" if self.is_seen_by_others else ""
        return f"exit code {self.code}{why}"


def _raise() -> None:
    raise ValueError("a fault was injected")


def _in_a_thread(do: Callable[[], object]) -> None:
    """Call it in another thread while this one waits, as if it computed."""
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def _raise_from_a_thread() -> None:
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    raised = ctypes.py_object(KeyError)
    _in_a_thread(lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, raised))
    time.sleep(0)


def _signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


_DEAD, _FROZEN = Outcome.AGAIN, Outcome.KILLED
FAULTS: dict[str, Fault] = {
    "exception": Fault(what="the script raises an exception", action=_raise, joined=_DEAD, code=1),
    "asynchronous exception": Fault(
        what="another thread raises an exception in the main thread",
        action=_raise_from_a_thread,
        joined=_DEAD,
        code=1,
    ),
    "sys.exit": Fault(
        what="the script calls `sys.exit(5)`", action=lambda: sys.exit(5), joined=_DEAD, code=5
    ),
    "exit": Fault(
        what="a library ends the process with exit code 3",
        action=lambda: os._exit(3),
        joined=_DEAD,
        code=3,
    ),
    "SIGTERM": Fault(
        what="SIGTERM to one rank", action=_signal(signal.SIGTERM), joined=_DEAD, code=143
    ),
    "SIGKILL": Fault(
        what="SIGKILL, as when memory runs out",
        action=_signal(signal.SIGKILL),
        joined=_DEAD,
        code=137,
    ),
    "SIGSEGV": Fault(
        what="a segmentation fault",
        action=lambda: print(ctypes.string_at(0)),
        joined=_DEAD,
        code=139,
    ),
    "abort": Fault(what="`abort()`", action=os.abort, joined=_DEAD, code=134),
    "abort in a thread": Fault(
        what="`abort()` in another thread",
        action=lambda: _in_a_thread(os.abort),
        joined=_DEAD,
        code=134,
    ),
    "SIGSTOP": Fault(
        what="the process is frozen (SIGSTOP)",
        action=_signal(signal.SIGSTOP),
        joined=_FROZEN,
        code=1,
        is_seen_by_others=True,
    ),
    "GIL": Fault(
        what="a call in C waits and holds the GIL",
        action=lambda: ctypes.PyDLL(None).sleep(10_000),
        joined=_FROZEN,
        code=1,
        is_seen_by_others=True,
    ),
    "exception in a thread": Fault(
        what="another thread raises an exception",
        action=lambda: _in_a_thread(_raise),
        joined=Outcome.NOTHING,
        code=0,
    ),
    "lock": Fault(
        what="the main thread waits for a lock that is never released",
        action=_wait_for_a_lock,
        joined=Outcome.GIVEN_UP,
        code=1,
        is_seen_by_others=True,
    ),
    "exit as if done": Fault(
        what="a library ends the process with exit code 0",
        action=lambda: os._exit(0),
        joined=Outcome.AGAIN,
        code=1,
        is_seen_by_others=True,
    ),
}
ACTIONS: dict[str, Callable[[], object]] = {name: fault.action for name, fault in FAULTS.items()}


def table() -> str:
    """Return the page's table."""
    rows = [
        "| fault of one rank | bundled trainer, or script with `ddp_trainer.join` | "
        "script that uses torch alone |",
        "|---|---|---|",
    ]
    rows += [
        f"| {fault.what} | {fault.joined.value} | {fault.plain} |" for fault in FAULTS.values()
    ]
    return "\n".join(rows)


def written(page: str) -> str:
    """Return the page with the table as it should be."""
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return f"{page[:begin]}{table()}\n{page[end:]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

"""A process that ends in order while a thread of it is inside of torch."""

from __future__ import annotations

import subprocess
import sys

from tests.trainer.support.pods import DEADLINE_SECONDS

PROGRAM = """
import sys, threading, time
from datetime import timedelta
from ddp_trainer.system.threads import start_thread
from torch.distributed import DistStoreError, TCPStore

store = TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=0.2))
asking = threading.Event()

def ask():
    asking.set()
    try:
        store.wait(["never"])
    except DistStoreError:
        print("was told", flush=True)

if sys.argv[1] == "ours":
    start_thread("ask", ask)
else:
    threading.Thread(target=ask, daemon=True).start()
asking.wait()
time.sleep(0.1)
sys.exit(7)
"""


def run(kind: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def test_it_waits_for_the_thread() -> None:
    ended = run("ours")
    assert (ended.returncode, ended.stdout) == (7, "was told\n"), ended.stderr


def test_without_that_it_may_abort() -> None:
    """Else the test above would show nothing. Only a busy machine lets the thread come too late."""
    for _ in range(3):
        end = run("a plain thread")
        assert end.returncode in (-6, 7)
        if end.returncode == -6:
            break
    assert "terminate called without an active exception" in end.stderr

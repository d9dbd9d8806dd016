"""A group is released while its own thread still refers to it, or waits for Python's lock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.trainer.support.pods import DEADLINE_SECONDS

BEGIN = """
import sys, threading, time
import torch
from ddp_trainer.process_group import teardown
from torch import distributed as dist

may_continue = threading.Event()

def begin(look):
    too_late = []

    def when_over(sums):
        if threading.current_thread() is threading.main_thread():
            too_late.append(sums)
            return
        may_continue.wait()
        look()

    while True:
        end = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(when_over)
        if not too_late:  # it ended after `then`
            return end
        too_late.clear()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
"""`begin` starts a collective; its thread calls `look` once it may continue."""

PROGRAM = """
if sys.argv[1] == "at once":
    teardown._has_no_other_references = lambda groups: True

def size_of(group):
    return lambda: print("a group of", group.size(), flush=True)

end = begin(size_of(dist.group.WORLD))
teardown.keep_for_teardown(dist.group.WORLD)
dist.destroy_process_group()
released = teardown.release_last_group()
released.join(0.5)
may_continue.set()
end.wait()
released.join()
if sys.argv[1] == "at once":
    threading.Event().wait(60)  # the process aborts
"""

WAITING = """
end = begin(lambda: time.sleep(0.5))  # afterwards it needs the lock again
teardown.keep_for_teardown(dist.group.WORLD)
dist.destroy_process_group()
may_continue.set()
teardown.release_last_group().join()
end.wait()
"""


@pytest.mark.parametrize(
    ("when", "code", "error"),
    [
        ("without other references", 0, ""),
        pytest.param("at once", -6, "Resource deadlock avoided", marks=pytest.mark.nightly),
    ],
)
def test_group_is_not_released_by_its_own_thread(when: str, code: int, error: str) -> None:
    """The second case shows that the first one can fail."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + PROGRAM, when],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "a group of 1\n"), ended.stderr
    assert error in ended.stderr


def test_group_is_released_while_its_thread_waits_for_pythons_lock() -> None:
    """On torch 2.7, all threads of the process stood still; later ones end groups without it."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + WAITING],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr

"""A group is released while its own thread still refers to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.trainer.support.pods import DEADLINE_SECONDS

PROGRAM = """
import sys, threading
import torch
from ddp_trainer.process_group import teardown
from torch import distributed as dist

if sys.argv[1] == "at once":
    teardown._has_no_other_references = lambda groups: True

may_continue = threading.Event()

def begin():
    group, too_late = dist.group.WORLD, []

    def look(sums):
        if threading.current_thread() is threading.main_thread():
            too_late.append(sums)
            return
        may_continue.wait()
        print("a group of", group.size(), flush=True)

    while True:
        end = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(look)
        if not too_late:  # it ended after `then`
            return end
        too_late.clear()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
end = begin()
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
        [sys.executable, "-c", PROGRAM, when],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "a group of 1\n"), ended.stderr
    assert error in ended.stderr

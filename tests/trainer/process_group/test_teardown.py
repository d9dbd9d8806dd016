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

may_go_on = threading.Event()

def begin():
    group, too_late = dist.group.WORLD, []

    def look(sums):
        if threading.current_thread() is threading.main_thread():
            too_late.append(sums)
            return
        may_go_on.wait()
        print("a group of", group.size(), flush=True)

    while True:
        end = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(look)
        if not too_late:  # else it had ended before anybody wanted to look
            return end
        too_late.clear()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
end = begin()
teardown.keep_for_teardown(dist.group.WORLD)
dist.destroy_process_group()
buried = teardown.release_last_group()
buried.join(0.5)
may_go_on.set()
end.wait()
buried.join()
if sys.argv[1] == "at once":
    threading.Event().wait(60)  # for the end that is to come
"""


@pytest.mark.parametrize(
    ("when", "code", "said"),
    [("when nobody else needs it", 0, ""), ("at once", -6, "Resource deadlock avoided")],
)
def test_whoever_is_last_must_not_be_the_groups_own_thread(when: str, code: int, said: str) -> None:
    """The second case shows that the first one can fail."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, when],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "a group of 1\n"), ended.stderr
    assert said in ended.stderr

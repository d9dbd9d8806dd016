"""Kills a save at each of its points, one process after the other, and checks what is left.

    python -m tests.trainer.checkpoints.killed_saves FOLDER

Prints as JSON how often the old checkpoint was left, and how often the new one. Fails if there is
none, or if the next save does not succeed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from ddp_trainer.checkpoints import checkpoint, frozen_files, storage

from tests.trainer.checkpoints import test_frozen_weights as frozen

_MOST_POINTS = 200
_LARGE_BYTES = 1 << 16
_EVERY_SMALL = 40
"""Kill at one of so many small pieces that torch writes."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    states = {"old": frozen.new_run(seed=0), "new": frozen.new_run(seed=1)}
    for run in states.values():
        frozen.advance(run)
    frozen.advance(states["new"])
    begin = folder / "begin"
    frozen.saver(begin).save_for_certain(states["old"])
    found: Counter[str] = Counter()
    for point in count():
        assert point < _MOST_POINTS
        root = folder / str(point)
        shutil.copytree(begin, root)
        is_complete = _save_in_a_child(root, states["new"], kill_at=point)
        run = frozen.restored(root, seed=2)
        left = {1: "old", 2: "new"}[run.position.step]
        frozen.assert_same_run(run, states[left])
        has_both = len(list(root.glob("frozen-*.pt"))) == 2
        found[f"{left} with both files" if has_both else left] += 1
        frozen.save(frozen.saver(root, keep=1), run)
        frozen.assert_same_run(frozen.restored(root, seed=2), run)
        frozen.frozen_file(root)  # the one that is left
        shutil.rmtree(root)
        if is_complete:
            print(json.dumps(found))
            return


def _save_in_a_child(root: Path, run: Any, *, kill_at: int) -> bool:
    """Save in a process that is killed at this point; return False if it was."""
    child = os.fork()
    if child == 0:
        _kill_at(kill_at)
        try:
            frozen.saver(root, keep=1).save_for_certain(run)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    return True


def _kill_at(number: int) -> None:
    """Let this process die at this point: within a file, or before or after one."""
    points, chunks = count(), count(1)
    write = storage.Recorder._write

    def write_and_pass_by(self: storage.Recorder, chunk: memoryview) -> None:
        write(self, chunk)
        if len(chunk) >= _LARGE_BYTES or next(chunks) % _EVERY_SMALL == 0:
            self.flush()
            pass_by()

    def pass_by() -> None:
        if next(points) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            pass_by()
            result = function(*arguments, **options)
            pass_by()
            return result

        return call

    storage.Recorder._write = write_and_pass_by  # type: ignore[method-assign]
    for owner, name in (
        (checkpoint, "write_file"),
        (checkpoint, "sync_directory"),
        (frozen_files, "write_file"),
        (frozen_files, "sync_directory"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (shutil, "rmtree"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Lines that a rank prints."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.trainer.support.pods import DEADLINE_SECONDS

PROGRAM = """
from ddp_trainer.system.logs import log_to_stdout

log_to_stdout("rank 0")
print("loss", 0.5)
print("a bar", end="\\r")
print("unfinished", end="")
"""


def test_each_line_is_one_write() -> None:
    """With PYTHONUNBUFFERED, as in pods; otherwise lines of threads mix."""
    read, write = os.pipe2(os.O_DIRECT)  # each read returns one write
    with os.fdopen(read, "rb", buffering=0) as printed:
        with os.fdopen(write, "wb") as stdout:
            subprocess.run(
                [sys.executable, "-u", "-c", PROGRAM],
                stdout=stdout,
                check=True,
                timeout=DEADLINE_SECONDS,
            )
        assert [printed.read(4096) for _ in range(4)] == [
            b"loss 0.5\n",
            b"a bar\r",
            b"unfinished",
            b"",
        ]

"""The trainer's launcher, whose ranks come from a forkserver that a test has prepared."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ddp_trainer import launch
from ddp_trainer.launcher import starters
from ddp_trainer.system.logs import end_process


def main(forkserver: str) -> NoReturn:
    """Launch ranks that `forkserver`, the name of a module, forks."""
    starters.FORKSERVER = forkserver
    end_process(launch.main(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main("tests.trainer.forkserver")

"""The trainer's launcher, whose ranks compute on a device with a stream."""

from __future__ import annotations

import os
import sys

from ddp_trainer import launch
from ddp_trainer.launcher import starters
from ddp_trainer.system.logs import end_process

if __name__ == "__main__":
    starters.FORKSERVER = "tests.trainer.stream_device.forkserver"
    end_process(launch.main(sys.argv[1:], os.environ))

"""The trainer's forkserver, with the device installed in it and in all ranks that it forks."""

from __future__ import annotations

import os
import socket
import sys

from ddp_trainer.launcher.forkserver import serve

from tests.trainer import deaths
from tests.trainer.stream_device.device import Sabotage, install

SABOTAGE_VARIABLE = "TEST_SABOTAGE"

if __name__ == "__main__":
    wanted = os.environ.get(SABOTAGE_VARIABLE)
    install(Sabotage(wanted) if wanted is not None else None)
    deaths.install(os.environ)
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

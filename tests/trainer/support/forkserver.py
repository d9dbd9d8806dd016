"""The trainer's forkserver; its ranks suffer the faults that a test has planned."""

from __future__ import annotations

import os
import socket
import sys

from ddp_trainer.launcher.ranks.forkserver import serve

from tests.trainer.support import fault_injection


def main() -> None:
    """Serve the launcher that has started this process."""
    fault_injection.install(os.environ)
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

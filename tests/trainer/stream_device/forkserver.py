"""The trainer's forkserver, with the device installed in it and in all ranks that it forks."""

from __future__ import annotations

import os

from tests.trainer.stream_device.device import Sabotage, install
from tests.trainer.support import forkserver

SABOTAGE_VARIABLE = "TEST_SABOTAGE"


def main() -> None:
    """Serve the launcher that started this process."""
    wanted = os.environ.get(SABOTAGE_VARIABLE)
    install(Sabotage(wanted) if wanted is not None else None)
    forkserver.main()

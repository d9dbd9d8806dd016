"""A forkserver whose ranks run a script: starting Python for each of a hundred would take too long.

That scripts come back as commands of their own, too, is for `test_commands`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ddp_trainer import __main__ as trainer

from tests.trainer import forkserver
from tests.trainer.library import script
from tests.trainer.stream_device.device import install
from tests.trainer.stream_device.kernels import replace

DEVICE_VARIABLE = "TEST_DEVICE"
ARGUMENTS_VARIABLE = "TEST_SCRIPT_ARGUMENTS"


def run_script(_: Sequence[str]) -> int:
    """What a rank does."""
    try:
        script.main(json.loads(os.environ[ARGUMENTS_VARIABLE]))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    if os.environ[DEVICE_VARIABLE] == "stream":
        install()
    replace(trainer, "main", run_script)
    forkserver.main()

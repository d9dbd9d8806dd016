"""A forkserver whose ranks run a script: starting Python for each of a hundred would take too long.

That scripts come back as commands of their own is for `test_your_script`.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Sequence

from ddp_trainer import __main__ as trainer

from tests.trainer.gpu.sharing import share_gpu
from tests.trainer.library import (
    adversaries,
    asking,
    averaging,
    calling,
    leaving,
    omitting,
    script,
    streaming,
)
from tests.trainer.library.checks import flipping, skipping
from tests.trainer.library.sharded import meshes, sharding
from tests.trainer.stream_device.device import install
from tests.trainer.stream_device.kernels import replace
from tests.trainer.support import forkserver

DEVICE_VARIABLE = "TEST_DEVICE"
SCRIPT_VARIABLE = "TEST_SCRIPT"
SCRIPTS = {
    "one model": script.main,
    "two models": adversaries.main,
    "streams": streaming.main,
    "an average": averaging.main,
    "collectives": calling.main,
    "meshes": meshes.main,
    "leaving": leaving.main,
    "asking": asking.main,
    "layers left out": omitting.main,
    "shards": sharding.main,
    "flips": flipping.main,
    "bad batches": skipping.main,
}


def run_script(arguments: Sequence[str]) -> int:
    """What a rank does."""
    script = os.environ[SCRIPT_VARIABLE]
    try:
        if script in SCRIPTS:
            SCRIPTS[script](arguments)
        else:  # a command line: a file and its arguments
            sys.argv = shlex.split(script)
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def main() -> None:
    """Serve the launcher that has started this process."""
    if os.environ[DEVICE_VARIABLE] == "stream":
        install()
    elif os.environ[DEVICE_VARIABLE] == "cuda":
        share_gpu(os.environ["NODE_RANK"])
    replace(trainer, "main", run_script)
    forkserver.main()

"""A forkserver; its ranks run a script without starting Python, which would take too long.

`test_your_script` tests scripts that are commands.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Sequence

from ddp_trainer import __main__ as trainer

from tests.trainer.gpu.sharing import share_gpu
from tests.trainer.habits import joined
from tests.trainer.library import (
    adversaries,
    averaging,
    calling,
    omitting,
    script,
    streaming,
)
from tests.trainer.library.checks import flipping, skipping
from tests.trainer.library.sharded import flipped, meshes, sharding
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
    "layers left out": omitting.main,
    "shards": sharding.main,
    "flips": flipping.main,
    "sharded flips": flipped.main,
    "bad batches": skipping.main,
    "a habit": joined.main,
}


def run_script(arguments: Sequence[str]) -> int:
    """Run the script of a rank; return its exit code."""
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
    """Serve the launcher that started this process."""
    if os.environ[DEVICE_VARIABLE] == "stream":
        install()
    elif os.environ[DEVICE_VARIABLE] == "cuda":
        share_gpu(os.environ["NODE_RANK"])
    replace(trainer, "main", run_script)
    forkserver.main()

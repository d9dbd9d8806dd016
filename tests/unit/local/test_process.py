"""The process of a pod, and its log."""

import asyncio
import os
from pathlib import Path

from ddp_client.local.machine.container import ContainerProcess
from ddp_client.local.machine.process import PodProcess

DEADLINE_SECONDS = 60.0


async def test_full_disk_ends_the_log_and_not_the_pod() -> None:
    """The output is larger than a pipe, so the process would stop if nobody read it."""
    lines: list[str] = []
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 3"
    what = ContainerProcess(
        command=("sh", "-c", script), environment=dict(os.environ), working_directory=None
    )
    process = await PodProcess.start(what, log=Path("/dev/full"), on_line=lines.append)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == 3
    finally:
        process.kill()
    assert lines[0] == "the log file ends here: No space left on device"
    assert lines[-1] == "line 19999"

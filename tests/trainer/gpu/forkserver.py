"""The trainer's forkserver, for pods that share one GPU."""

from __future__ import annotations

import os

from ddp_trainer.process_group.sockets import Connections

from tests.trainer.gpu.sharing import share_gpu
from tests.trainer.support import fault_injection, forkserver


def main() -> None:
    """Serve the launcher that has started this process."""
    share_gpu(os.environ["NODE_RANK"])
    fault_injection.patch(
        Connections, "begin_to_join_devices", after=lambda _: fault_injection.reach("joining")
    )
    forkserver.main()

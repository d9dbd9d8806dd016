"""The trainer's forkserver, for pods that share one GPU."""

from __future__ import annotations

import os

from ddp_trainer.process_group.sockets import Connections

from tests.trainer.support import deaths, forkserver


def main() -> None:
    """Serve the launcher that has started this process."""
    os.environ["NCCL_HOSTID"] = f"pod-{os.environ['NODE_RANK']}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"
    deaths.patch(Connections, "begin_to_join_devices", after=lambda _: deaths.pass_by("joining"))
    forkserver.main()

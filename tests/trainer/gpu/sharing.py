"""Several ranks share one GPU: NCCL takes them for ranks of several nodes."""

from __future__ import annotations

import os


def share_gpu(number: str) -> None:
    """Make this process, and those that it starts, a rank that no other has the `number` of."""
    os.environ["NCCL_HOSTID"] = f"pod-{number}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"

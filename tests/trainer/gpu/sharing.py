"""Several ranks share one GPU: NCCL treats them as ranks of several nodes."""

from __future__ import annotations

import os


def share_gpu(number: str) -> None:
    """Let this process and its children share a GPU; `number` differs for each rank."""
    os.environ["NCCL_HOSTID"] = f"pod-{number}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"

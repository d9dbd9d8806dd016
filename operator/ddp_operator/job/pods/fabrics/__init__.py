"""Settings of a pod for direct networking between GPUs (NCCL).

Each adds what the pod lacks. The user's template wins, so applying a fabric twice changes nothing.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from ddp_operator.api.gpus import Fabric, Gpu
from ddp_operator.job.pods.fabrics.rdma import dranet, rdma
from ddp_operator.job.pods.fabrics.side_cars import DEFAULT_SIDE_CARS, SideCars
from ddp_operator.job.pods.fabrics.tcpx import tcpx
from ddp_operator.job.pods.fabrics.tcpxo import tcpxo
from ddp_operator.ports import Manifest

__all__ = ["DEFAULT_SIDE_CARS", "PRIVILEGES", "SideCars", "on_fabric"]

PRIVILEGES: Final[Mapping[Fabric, str]] = {
    "tcpx": "host paths for NVIDIA's libraries, the daemon's socket and /sys, and the capabilities "
    "NET_ADMIN (daemon) and IPC_LOCK (trainer)",
    "tcpxo": "host paths for NVIDIA's libraries, devices and /sys, and the daemon's capabilities "
    "NET_ADMIN and NET_BIND_SERVICE",
    "rdma": "host paths for NVIDIA's libraries and gIB's",
    "dranet": "host paths for NVIDIA's libraries and gIB's, and on A4X Max IPC_LOCK",
}
"""Parts of each fabric that a Pod Security Standard may forbid."""


def on_fabric(
    fabric: Fabric,
    pod: Manifest,
    *,
    trainer: str,
    gpu: Gpu | None = None,
    side_cars: SideCars = DEFAULT_SIDE_CARS,
) -> dict[str, Any]:
    """Return the pod with all that its fabric needs. `trainer` names its training container, `gpu`
    is the table's entry for its machine.
    """
    draft = deepcopy(dict(pod))
    match fabric:
        case "tcpx":
            tcpx(draft, trainer, side_cars.tcpx)
        case "tcpxo":
            tcpxo(draft, trainer, side_cars.tcpxo)
        case "rdma":
            rdma(draft, trainer, gpu)
        case "dranet":
            dranet(draft, trainer, gpu)
    return draft

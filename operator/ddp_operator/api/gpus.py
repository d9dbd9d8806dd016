"""GPUs that GKE offers. Jobs of a known type are checked; an unknown type passes with a warning.

Sources are Google's pages. Types, counts and sharing:
https://cloud.google.com/kubernetes-engine/docs/concepts/gpus. Machines and memory:
https://cloud.google.com/compute/docs/gpus. GPU networks:
https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx and
https://cloud.google.com/ai-hypercomputer/docs/gpudirect-rdma. NVLink domains and network cards of
A4X: its and A4X Max' pages below https://docs.cloud.google.com/ai-hypercomputer/docs/create, as
quoted by https://github.com/NVIDIA/aicr. Nothing here was tested on such machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Fabric = Literal["tcpx", "tcpxo", "rdma", "dranet"]
"""GPU networks between nodes that bypass the nodes' CPUs."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Machines with one value of the node label cloud.google.com/gke-accelerator."""

    machines: tuple[str, ...]
    """Machine families."""
    counts: tuple[int, ...]
    """GPUs of one machine, for each of its sizes."""
    memory_gb: int
    """Memory of each GPU, in GB."""
    fabric: Fabric | None = None
    """Network of the machines with the largest number of GPUs."""
    other_fabric: Fabric | None = None
    """Another way to the same network cards: by device name or by claim."""
    network_cards: int = 8
    """RDMA cards of one machine."""
    gib_on_node: bool = True
    """An installer puts Google's plugin gIB on the nodes; otherwise it is in the image."""
    domain_nodes: int = 0
    """Nodes of one NVLink domain; 0: NVLink connects only the GPUs of a node."""
    arm64: bool = False
    partitions: int = 1
    """Largest number of parts of a divided GPU (MIG); 1 if it cannot be divided."""

    @property
    def most(self) -> int:
        """GPUs of the largest machine."""
        return max(self.counts)


GPUS: Final[Mapping[str, Gpu]] = {
    "nvidia-tesla-t4": Gpu(machines=("n1",), counts=(1, 2, 4), memory_gb=16),
    "nvidia-l4": Gpu(machines=("g2-standard",), counts=(1, 2, 4, 8), memory_gb=24),
    "nvidia-rtx-pro-6000": Gpu(
        machines=("g4-standard",), counts=(1, 2, 4, 8), memory_gb=96, partitions=4
    ),
    "nvidia-tesla-a100": Gpu(
        machines=("a2-highgpu", "a2-megagpu"),
        counts=(1, 2, 4, 8, 16),
        memory_gb=40,
        partitions=7,
    ),
    "nvidia-a100-80gb": Gpu(
        machines=("a2-ultragpu",), counts=(1, 2, 4, 8), memory_gb=80, partitions=7
    ),
    "nvidia-h100-80gb": Gpu(
        machines=("a3-highgpu", "a3-edgegpu"),
        counts=(1, 2, 4, 8),
        memory_gb=80,
        fabric="tcpx",
        partitions=7,
    ),
    "nvidia-h100-mega-80gb": Gpu(
        machines=("a3-megagpu",), counts=(8,), memory_gb=80, fabric="tcpxo", partitions=7
    ),
    "nvidia-h200-141gb": Gpu(
        machines=("a3-ultragpu",),
        counts=(8,),
        memory_gb=141,
        fabric="rdma",
        other_fabric="dranet",
        partitions=7,
    ),
    "nvidia-b200": Gpu(
        machines=("a4-highgpu",),
        counts=(8,),
        memory_gb=180,
        fabric="rdma",
        other_fabric="dranet",
        partitions=7,
    ),
    "nvidia-gb200": Gpu(
        machines=("a4x-highgpu",),
        counts=(4,),
        memory_gb=186,
        fabric="dranet",
        other_fabric="rdma",
        network_cards=4,
        domain_nodes=18,
        arm64=True,
        partitions=7,
    ),
    "nvidia-gb300": Gpu(
        machines=("a4x-maxgpu",),
        counts=(4,),
        memory_gb=279,
        fabric="dranet",
        gib_on_node=False,
        domain_nodes=18,
        arm64=True,
        partitions=7,
    ),
}


def networks(gpu: Gpu) -> tuple[Fabric, ...]:
    """Return the networks of machines with such GPUs. `auto` uses the first."""
    return tuple(fabric for fabric in (gpu.fabric, gpu.other_fabric) if fabric)

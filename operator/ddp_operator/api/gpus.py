"""The GPUs that GKE rents out, in one table: what is known of a type is checked, and what is not
known is carried through with a warning.

As Google describes them: types, counts and sharing in
https://cloud.google.com/kubernetes-engine/docs/concepts/gpus, machines and memory in
https://cloud.google.com/compute/docs/gpus, fabrics in
https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx and
https://cloud.google.com/ai-hypercomputer/docs/gpudirect-rdma. None of it was tried on such
machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Fabric = Literal["tcpx", "tcpxo", "rdma", "dranet"]
"""How GPUs of different nodes reach each other past the nodes' CPUs."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A value of the node label cloud.google.com/gke-accelerator, and what has it."""

    machines: tuple[str, ...]
    """Machine families."""
    counts: tuple[int, ...]
    """GPUs of one machine, by its size."""
    memory_gb: int
    """Of each GPU."""
    fabric: Fabric | None = None
    """Of the machines that have as many GPUs as there may be."""
    arm64: bool = False
    partitions: int = 1
    """Into how many a GPU can be divided (MIG); 1: not at all."""

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
        machines=("a3-highgpu",), counts=(1, 2, 4, 8), memory_gb=80, fabric="tcpx", partitions=7
    ),
    "nvidia-h100-mega-80gb": Gpu(
        machines=("a3-megagpu",), counts=(8,), memory_gb=80, fabric="tcpxo", partitions=7
    ),
    "nvidia-h200-141gb": Gpu(
        machines=("a3-ultragpu",), counts=(8,), memory_gb=141, fabric="rdma", partitions=7
    ),
    "nvidia-b200": Gpu(
        machines=("a4-highgpu",), counts=(8,), memory_gb=180, fabric="rdma", partitions=7
    ),
    # Their fabrics want a ComputeDomain besides, which the operator does not make.
    "nvidia-gb200": Gpu(
        machines=("a4x-highgpu",), counts=(4,), memory_gb=186, arm64=True, partitions=7
    ),
    "nvidia-gb300": Gpu(
        machines=("a4x-maxgpu",), counts=(4,), memory_gb=279, arm64=True, partitions=7
    ),
}


def networks(gpu: Gpu) -> tuple[Fabric, ...]:
    """Return the fabrics by which machines with such GPUs may be joined; `auto` is the first."""
    if gpu.fabric == "rdma":
        return ("rdma", "dranet")  # the same cards, by name or by claim
    return (gpu.fabric,) if gpu.fabric else ()
